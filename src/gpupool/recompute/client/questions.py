"""A look-up in the form that every part of the client needs: what is sent, what the answer is checked against."""

from dataclasses import dataclass
from typing import Literal

from gpupool.contracts.recompute import PROOFS_PATH, QUALITIES_PATH, ProofRequest, QualityRequest
from gpupool.core.ids import new_id

Kind = Literal["proof", "quality"]
_BITS_AT_LEVEL_ZERO = 15


@dataclass(frozen=True, slots=True)
class Question:
    """One look-up."""

    kind: Kind
    body: bytes
    """The request as JSON."""
    request_id: str
    plot_id: bytes
    k: int
    bits: int
    """How many low bits of every x the plot leaves out."""
    line_points: tuple[int, ...]
    challenge: bytes | None

    @property
    def path(self) -> str:
        """The HTTP path that takes it."""
        return PROOFS_PATH if self.kind == "proof" else QUALITIES_PATH

    @property
    def speed_class(self) -> str:
        """Look-ups that take about equally long have the same."""
        return f"{self.kind} {self.bits}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A verified answer."""

    numbers: tuple[int, ...]
    """The 64 x of a proof in proof order, or the pair of a quality, smaller first."""
    host: str
    """Who gave it: ``host:port``, or ``local``."""
    seconds: float
    """From the question to the verified answer."""
    request_id: str
    troubles: tuple[str, ...]
    """What went wrong with other hosts on the way, in words."""


def question_of(request: ProofRequest | QualityRequest) -> Question:
    """Return the look-up that ``request`` describes, with an id of its own."""
    bits = request.bits if request.level is None else _BITS_AT_LEVEL_ZERO + request.level
    return Question(
        kind="proof" if isinstance(request, ProofRequest) else "quality",
        body=request.model_dump_json(exclude_none=True).encode(),
        request_id=new_id("req"),
        plot_id=bytes.fromhex(request.plot_id),
        k=request.k,
        bits=bits or 0,
        line_points=tuple(int(line_point, 16) for line_point in request.line_points),
        challenge=None if request.challenge is None else bytes.fromhex(request.challenge),
    )
