"""Messages of the recompute API (port 11989): what a harvester sends and what a server answers.

Numbers travel as hexadecimal text without a prefix, since a line point does not fit what JSON readers keep exact.
With ``Accept: application/octet-stream`` an answer is only its numbers, big-endian, four bytes each for k <= 32 and
eight above, so that a client in C needs no parser; the other fields are then headers.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from gpupool.contracts.base import Id, Message, Text

PORT: Final = 11989
PROOFS_PATH: Final = "/v1/proofs"
QUALITIES_PATH: Final = "/v1/qualities"
SOLUTIONS_PATH: Final = "/v1/solutions"
SERVER_PATH: Final = "/v1/server"
BODY_LIMIT: Final = 64 * 1024
"""Bytes of a request; a real one has less than one thousand."""
MAX_DEADLINE_MS: Final = 600_000
REQUEST_ID_HEADER: Final = "X-Request-Id"
DEADLINE_HEADER: Final = "X-Deadline-Ms"
CHECKED_HEADER: Final = "X-Checked"
BINARY_TYPE: Final = "application/octet-stream"

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")]
"""32 bytes in hexadecimal."""
LinePoint = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{1,16}$")]
"""A number below 2^64 in hexadecimal."""
WideLinePoint = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{1,32}$")]
"""A number below 2^128 in hexadecimal."""
Number = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,16}$")]
PartialProof = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{256}$")]
"""128 bytes in hexadecimal, as chia_rs writes them."""
Release = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+-]{0,39}$")]
"""Of a Python package, such as ``0.48.0``."""


class _Request(Message):
    plot_id: Hash
    k: int
    level: int | None = None
    """Compression level of the plot; give this or ``bits``."""
    bits: int | None = None
    """How many low bits of every x the plot leaves out (15 + level)."""

    @model_validator(mode="after")
    def _one_of_level_and_bits(self) -> Self:
        if (self.level is None) == (self.bits is None):
            raise ValueError("give either level or bits")
        return self


class ProofRequest(_Request):
    """Recover a full proof."""

    line_points: Annotated[list[LinePoint], Field(min_length=32, max_length=32)]
    """Line points of the proof's 32 pairs after the low bits were dropped, as a plot stores them.

    Siblings may stand in either order in every table: a plot sorts them, and only recovery tells which one is left.
    """
    challenge: Hash | None = None
    """Without it only the tables are checked, not whether the proof answers the challenge."""


class QualityRequest(_Request):
    """Recover the pair of x that decides a proof's quality."""

    line_points: Annotated[list[WideLinePoint], Field(min_length=1, max_length=2)]
    """Line points of line points: the one the challenge leads to, then its sibling where the client has it."""
    challenge: Hash


class SolutionRequest(Message):
    """Complete the partial proof of a v2 plot."""

    partial_proof: PartialProof
    plot_id: Hash
    k: int
    strength: int
    chia_rs: Release
    """Release of chia_rs that the plot was made for; another one could only fail, and is refused with 422."""


class SolutionReply(Message):
    """The whole proof, whose quality is the partial one's."""

    proof: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2}){1,4096}$")]
    """Hexadecimal; k x 16 bytes."""


class ProofReply(Message):
    """A recovered proof that the server has verified."""

    proof: Annotated[list[Number], Field(min_length=64, max_length=64)]
    """The 64 x in proof order."""
    checked: Literal["challenge", "tables"]
    """Against what: challenge and all tables, or the tables alone (the request had no challenge)."""

    def numbers(self) -> tuple[int, ...]:
        """Return the 64 x."""
        return tuple(int(x, 16) for x in self.proof)


class QualityReply(Message):
    """A recovered pair that the server has verified as far as the tables below it reach."""

    x: Annotated[list[Number], Field(min_length=2, max_length=2)]
    """Smaller, larger."""
    checked: Literal["tables"] = "tables"

    def numbers(self) -> tuple[int, int]:
        """Return the pair, smaller first."""
        smaller, larger = (int(x, 16) for x in self.x)
        return smaller, larger


class LevelRate(Message):
    """Speed of one level, measured on this server's own answers; None before the first."""

    level: int
    proof_ms: float | None = None
    """Mean time of a full proof on one worker, recent ones weighing more."""
    quality_ms: float | None = None


class RecomputeDevice(Message):
    """Something that computes."""

    kind: Literal["cpu", "gpu"]
    name: Text
    engine: Text
    index: int | None = None
    """Of a card among those of its maker, as the server's flags count them."""
    workers: int
    """Requests it works on at once."""
    state: Literal["starting", "ready", "resting", "quarantined"] = "ready"
    """resting: its process died and is started again soon; quarantined: it died too often, and rests for long."""
    restarts: int = 0
    """Processes of it that were lost since the server started."""
    why: Text | None = None
    """What the last one died of; None while it is well."""
    rates: list[LevelRate] = []
    """How fast it is, as its own answers tell; empty before the first."""


class QueueView(Message):
    """How busy the server is."""

    running: int
    waiting: int
    room: int
    """How many may wait before the next is refused with 429."""


class KnownAnswersView(Message):
    """What needed no computing."""

    kept: int
    """Answers that are remembered."""
    hits: int
    """Requests that were answered from them, since the server started."""
    joined: int
    """Requests that waited for the computation of an equal one."""


class ExternalDevice(Message):
    """A device that a Gigahorse server says it uses."""

    name: Text
    engine: Text


class ExternalView(Message):
    """What the log lines of a kept Gigahorse server tell of it, and how its keeper fares with it."""

    program: Text
    pid: int | None
    listening: bool
    devices: list[ExternalDevice]
    requests: int
    """Since its keeper was started, as the other counts."""
    failed: int
    on_card: int
    troubles: int
    """Lines of other failures."""
    mean_ms: dict[str, float]
    """Mean time of a request by level (``C7``), recent ones weighing more."""
    starts: int
    why: Text | None = None
    """How it ended last; None while it runs and has never ended."""


class StrengthRate(Message):
    """How long a solution takes, by strength of a k=28 plot."""

    strength: int
    seconds: float
    """On this server when nothing else is worked on."""
    measured: bool
    """Whether its own answers tell so; reckoned from its cores otherwise."""


class SolverView(Message):
    """What a server does for v2 plots."""

    chia_rs: Release
    cores: int
    """For all solutions that are worked on at once."""
    workers: int
    """Solutions that are worked on at once."""
    state: Literal["idle", "starting", "ready", "resting", "quarantined"]
    """idle: its processes are started by the first request."""
    why: Text | None = None
    """What its last process ended of; None while it is well."""
    queue: QueueView
    rates: list[StrengthRate]


class RecomputeServerView(Message):
    """What a server is and can do (``GET /v1/server``)."""

    instance_id: Id
    version: Text
    state: Literal["starting", "ready", "draining"]
    k: list[int]
    levels: list[int]
    devices: list[RecomputeDevice]
    rates: list[LevelRate]
    queue: QueueView
    answers: KnownAnswersView | None = None
    """None where the server remembers none."""
    external: ExternalView | None = None
    """Set where this is the keeper of a Gigahorse server."""
    solver: SolverView | None = None
    """None where chia_rs is not installed, or solutions are switched off."""


def hexadecimal(numbers: Sequence[int]) -> list[str]:
    """Return numbers (>= 0) as they stand in a message."""
    return [f"{number:x}" for number in numbers]
