"""A question on its way: from the queue to a worker, perhaps to a second one, and back with what became of it."""

import asyncio
import itertools
from dataclasses import dataclass, field

from gpupool.core.errors import GpupoolError, UnavailableError
from gpupool.recompute.server.questions import AnyQuestion, Asking
from gpupool.recompute.server.rates import Work
from gpupool.recompute.server.staffing import WorkerPlan

_NUMBERS = itertools.count(1)


class WorkerLostError(UnavailableError):
    """The worker process that computed this ended or hung, and no other one can in time."""

    code = "worker_lost"
    default_remedy = "Use another server; the log of this one says what its worker died of."


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker has found and verified."""

    xs: tuple[int, ...]
    seconds: float
    """Of computing."""
    worker: WorkerPlan | None
    """Who computed it; None where it was known from before."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One question, for everybody who asks it now."""

    kind: Asking
    question: AnyQuestion
    deadline: float
    """Monotonic seconds; of whoever waits longest."""
    client: str = ""
    """Who asked first."""
    cost: float = 0.0
    """Expected seconds of computing."""
    outcome: "asyncio.Future[Answer]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    number: int = field(default_factory=lambda: next(_NUMBERS))
    waiters: int = 0
    """How many calls wait for the outcome."""
    began: float | None = None
    """Monotonic time at which a worker got it; None while it waits."""
    lost: GpupoolError | None = None
    """How the worker that had it was lost or failed."""
    tries: int = 0
    """Workers that were lost or failed over it."""
    avoided: set[str] = field(default_factory=set)
    """Factories of the cards that failed over it."""
    doubted: WorkerPlan | None = None
    """A card that found no proof, which another one is to confirm."""

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for the outcome."""
        return not self.outcome.done()

    @property
    def rank(self) -> tuple[float, int]:
        """Deadline, then order of arrival."""
        return self.deadline, self.number

    @property
    def work(self) -> Work:
        """What decides how long it takes."""
        return Work.of(self.kind, self.question)

    def succeed(self, answer: Answer) -> None:
        """Give the answer to whoever waits for it."""
        if self.wanted:
            self.outcome.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Give the error to whoever waits."""
        if self.wanted:
            self.outcome.set_exception(error)
