"""What the server asks of whoever computes; the server itself knows neither numba nor threads' memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gpupool.core.errors import GpupoolError
from gpupool.pos.costs import Cost, Kind
from gpupool.recompute.server.questions import Question
from gpupool.solvers.pool import SolverCapability
from gpupool.solvers.questions import SolveQuestion

Checkpoint = Callable[[], None]
"""Called between units of work; stops it by raising."""


class WrongAnswerError(GpupoolError):
    """The engine found an answer that does not verify; it was not sent."""

    code = "wrong_answer"
    default_remedy = "Take this server out of use: its memory or its compiled code may be damaged."


class EngineFaultError(GpupoolError):
    """The engine failed in an unexpected way."""

    code = "engine_fault"
    default_remedy = "Ask another server; if it repeats, look at the log of this one and at its free memory."


class Engine(Protocol):
    """Answers questions, one at a time in each calling thread; every answer is verified."""

    def proof(self, question: Question, checkpoint: Checkpoint) -> tuple[int, ...]:
        """Return the 64 x; raises NoProofError, InvalidInputError, WrongAnswerError or the checkpoint's error."""
        ...

    def quality(self, question: Question, checkpoint: Checkpoint) -> tuple[int, int]:
        """Return the pair of x, smaller first; errors as for `proof`."""
        ...


@dataclass(frozen=True, slots=True)
class Capability:
    """What an engine can do, and how fast it was seen to do it."""

    k: range
    """Plot sizes."""
    levels: range
    """Levels of k=32 plots."""
    formats: tuple[str, ...]
    """``bladebit``: plots of a level; ``bits``: any number of dropped bits, up to `most_dropped_bits` of each k."""
    values_a_second: dict[tuple[Kind, int, int], float]
    """By kind, k and dropped bits: values computed and joined a second, by all threads of one request together."""


class DescribedEngine(Engine, Protocol):
    """An engine that tells what a question takes before it is asked."""

    def cost(self, kind: Kind, question: Question) -> Cost:
        """Return values and memory that a question takes; raises UnsupportedError where it cannot be answered."""
        ...

    def capability(self) -> Capability:
        """Return what can be asked, with the speed of what was asked so far."""
        ...


@runtime_checkable
class SolverEngine(Protocol):
    """An engine for v2 plots, whose questions are others; every answer is verified here too."""

    def solve(self, question: SolveQuestion, checkpoint: Checkpoint) -> bytes:
        """Return the whole proof; raises UnsolvedError, SolverLostError or the checkpoint's error."""
        ...

    def seconds(self, question: SolveQuestion) -> float:
        """Return how long a question takes with all cores of one solver, as far as known."""
        ...

    def capability(self) -> SolverCapability:
        """Return what can be asked, with the release of chia_rs."""
        ...


AnyEngine = Engine | SolverEngine
