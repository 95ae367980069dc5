"""The second proof that the pool works: a real proof of space, truncated, sent out and recovered."""

import time
from dataclasses import dataclass
from typing import Final

from gpupool.contracts.recompute_client import RecomputeClient
from gpupool.core.errors import GpupoolError
from gpupool.recompute.demo import demo_request, known_proof

_DEADLINE_SECONDS: Final = 30.0


class WrongProofError(GpupoolError):
    """The recovered proof is not the one that was truncated."""

    code = "wrong_proof"
    default_remedy = "Take this server out of use and report it with its log."


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResult:
    """What came back."""

    plot_id: str
    k: int
    level: int
    proof: str
    """64 x-values of k bits as one number in hex, in proof order."""
    checked: str
    milliseconds: float
    """From sending the request to having the answer."""


def recompute(server: str, level: int) -> ProofResult:
    """Have ``server`` (an URL) recover the shipped proof truncated to ``level``; raise WrongProofError when it errs."""
    known = known_proof()
    with RecomputeClient(server) as client:
        # The first request of a connection pays for connecting; the time told is that of the work.
        client.server()
        begun = time.perf_counter()
        reply = client.recover_proof(demo_request(level), seconds=_DEADLINE_SECONDS)
        spent = time.perf_counter() - begun
    if reply.numbers() != known.xs:
        raise WrongProofError(f"The server at {server} answered with another proof than the one truncated.")
    return ProofResult(
        plot_id=known.plot_id.hex(),
        k=known.k,
        level=level,
        proof="".join(f"{x:0{known.k // 4}x}" for x in known.xs),
        checked=reply.checked,
        milliseconds=spent * 1000,
    )
