"""A question on its way: from the queue to a worker, perhaps to a second one, and back with what became of it."""

import asyncio
import itertools
from dataclasses import dataclass, field

from gpupool.core.errors import UnavailableError
from gpupool.recompute.server.questions import Question
from gpupool.recompute.server.rates import Kind
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
    worker: WorkerPlan


@dataclass(slots=True, eq=False)
class Ticket:
    """One question."""

    kind: Kind
    question: Question
    deadline: float
    """Monotonic seconds."""
    expected: float
    """Seconds of computing, as far as known; 0 where not."""
    outcome: "asyncio.Future[Answer]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    number: int = field(default_factory=lambda: next(_NUMBERS))
    began: float | None = None
    """Monotonic time at which a worker got it; None while it waits."""
    lost: WorkerLostError | None = None
    """How the worker that had it was lost."""

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for the outcome."""
        return not self.outcome.done()

    def seconds_left(self, now: float) -> float:
        """Return the expected rest of computing."""
        return self.expected if self.began is None else max(0.0, self.expected - (now - self.began))

    def succeed(self, answer: Answer) -> None:
        """Give the answer to whoever waits for it."""
        if self.wanted:
            self.outcome.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Give the error to whoever waits."""
        if self.wanted:
            self.outcome.set_exception(error)
