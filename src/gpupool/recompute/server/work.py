"""The queue in front of the workers: bounded, in order, and honest about time.

A request that would wait too long is refused at once instead of waiting in vain; one whose deadline passed while it
waited is never started; one whose client left, or whose deadline passes while it runs, stops at its next checkpoint.
One whose worker was lost goes to a fresh one, once.
"""

import asyncio
import math
from collections import deque
from typing import Final

from gpupool.core.clock import Clock, SystemClock
from gpupool.core.errors import BusyError, DeadlineError
from gpupool.recompute.server.crew import Crew
from gpupool.recompute.server.questions import Question
from gpupool.recompute.server.rates import Kind
from gpupool.recompute.server.tickets import Answer, Ticket, WorkerLostError

_WEIGHT: Final = 0.2
"""How much the newest time counts in the mean that Retry-After is made of."""
_LONGEST_RETRY_SECONDS: Final = 60


class OverloadedError(BusyError):
    """As many requests wait here as may wait."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(
            f"The queue of this server is full; try again in {retry_after} s, or another server."
        )
        self.retry_after = retry_after


class WorkQueue:
    """Hands questions to a crew, in the order they came."""

    def __init__(self, crew: Crew, room: int, clock: Clock | None = None) -> None:
        self.crew, self.room = crew, room
        self.clock: Clock = clock or SystemClock()
        self._waiting: deque[Ticket] = deque()
        self._mean_seconds = 0.1
        crew.attach(self._hand_out, self._take_back)

    @property
    def waiting(self) -> int:
        """Requests that wait for a worker."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that are worked on, or that a worker has not stopped with yet."""
        return len(self.crew.tickets)

    def expected_wait(self) -> float:
        """Return the seconds until a worker is free for one more request, as far as times are known."""
        tickets, now = [*self._waiting, *self.crew.tickets], self.clock.monotonic()
        until_ready = self.crew.seconds_until_ready()
        if len(tickets) < self.crew.slots:
            return until_ready
        return until_ready + sum(ticket.seconds_left(now) for ticket in tickets) / self.crew.slots

    async def run(self, kind: Kind, question: Question, deadline: float, expected: float = 0.0) -> Answer:
        """Return the answer to a question; ``deadline`` is in seconds of the clock's monotonic time.

        ``expected``: seconds of computing, for those who ask when they would be served; 0 where not known.

        Raises OverloadedError at once where too many wait, DeadlineError where it is not done in time,
        WorkerLostError where two workers were lost over it or there is no time for the second, or what the engine
        raises. Cancelling this call takes the question out of the queue or stops the work at its next checkpoint.
        """
        ticket = Ticket(kind, question, deadline, expected)
        jobs = len(self._waiting) + self.running
        # Whoever finds a free worker does not wait, so the room is what may queue behind busy ones.
        if jobs >= self.crew.slots + self.room:
            raise OverloadedError(self._retry_after(jobs))
        left = deadline - self.clock.monotonic()
        if left <= 0:
            raise DeadlineError
        self._waiting.append(ticket)
        self._hand_out()
        try:
            async with asyncio.timeout(left):
                return await ticket.outcome
        except TimeoutError as error:
            raise ticket.lost or DeadlineError() from error
        finally:
            self._drop(ticket)

    def note_seconds(self, seconds: float) -> None:
        """Learn how long one request took."""
        self._mean_seconds += _WEIGHT * (seconds - self._mean_seconds)

    async def drain(self, seconds: float) -> bool:
        """Wait until nothing waits or runs, at most ``seconds``; True when that is so."""
        deadline = self.clock.monotonic() + seconds
        while self._waiting or self.running:
            if self.clock.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    def _hand_out(self) -> None:
        while self._waiting and self.crew.take(self._waiting[0]):
            self._waiting.popleft()

    def _take_back(self, ticket: Ticket, error: WorkerLostError) -> None:
        """Put a question whose worker was lost at the head of the queue, unless it cannot be done any more."""
        left = ticket.deadline - self.clock.monotonic()
        first = ticket.lost is None
        ticket.lost, ticket.began = error, None
        if not ticket.wanted:
            return
        if first and self.crew.seconds_until_ready() + ticket.expected < left:
            self._waiting.appendleft(ticket)
        else:
            ticket.fail(error)

    def _drop(self, ticket: Ticket) -> None:
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        self.crew.cancel(ticket)

    def _retry_after(self, jobs: int) -> int:
        seconds = jobs * self._mean_seconds / self.crew.slots
        return max(1, min(_LONGEST_RETRY_SECONDS, math.ceil(seconds)))
