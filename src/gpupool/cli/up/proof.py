"""The second proof that the pool works: a real proof of space, truncated, sent out and recovered."""

from dataclasses import dataclass
from typing import Final

from gpupool.core.errors import GpupoolError

_DEADLINE_SECONDS: Final = 30.0


class WrongProofError(GpupoolError):
    """The recovered proof is not the one that was truncated."""

    code = "wrong_proof"
    default_remedy = "Take this server out of use and report it with its log."


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResult:
    """What came back."""

    plot_id: str
    level: int
    proof: str
    """64 x-values of 32 bits, hex, in proof order."""
    checked: str
    milliseconds: float
