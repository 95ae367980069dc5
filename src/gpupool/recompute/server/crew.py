"""All workers of a server, as the queue sees them: places that take questions, and when they will.

The first worker compiles and fills the cache of kernels before the others start, which then find it warm: eight cards
would otherwise compile the same eight times at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from gpupool.core.clock import Clock
from gpupool.core.errors import GpupoolError
from gpupool.recompute.server.seat import Lost, Seat, SeatRules, SeatState
from gpupool.recompute.server.staffing import WorkerPlan
from gpupool.recompute.server.tickets import Ticket, WorkerLostError

_END_SECONDS: Final = 0.5
"""For a worker to end by itself; one that hangs is killed then."""
WARM_SECONDS: Final = 60.0
"""Others start then even where the first one is still compiling."""


class Place(Protocol):
    """One worker as the queue sees it."""

    @property
    def plan(self) -> WorkerPlan:
        """What it is."""
        ...

    @property
    def state(self) -> SeatState:
        """Whether it takes questions (``ready``)."""
        ...

    @property
    def why(self) -> str | None:
        """What its last process ended of; None while it is well."""
        ...

    @property
    def deaths(self) -> int:
        """Processes of it that were lost."""
        ...

    @property
    def tickets(self) -> list[Ticket]:
        """What it has, questions that nobody waits for any more included."""
        ...

    def seconds_until_ready(self) -> float:
        """Return how long until it takes questions, as far as known."""
        ...

    def take(self, ticket: Ticket) -> None:
        """Work on a question; only where it is ready and has a thread free."""
        ...

    def cancel(self, ticket: Ticket) -> None:
        """Stop working on a question, where it has it."""
        ...

    def give_up(self, why: str, *, useless: bool = False) -> None:
        """End its process and replace it; one that is ``useless`` only after quarantine."""
        ...


class Crew(Protocol):
    """Who answers questions."""

    @property
    def places(self) -> Sequence[Place]:
        """Its workers."""
        ...

    def attach(self, changed: Callable[[], None], lost: Lost) -> None:
        """Name who is told that somebody may be free, and who gets questions back; once, before anything else."""
        ...

    def why_not(self) -> str | None:
        """Return what is wrong where nobody is ready; None where the crew starts for the first time."""
        ...


class ProcessCrew:
    """Workers that are processes; see `Crew`."""

    def __init__(self, plans: Sequence[WorkerPlan], rules: SeatRules, clock: Clock | None = None) -> None:
        self._plans, self._rules, self._clock = plans, rules, clock
        self._seats: list[Seat] = []
        self._working: asyncio.Task[None] | None = None
        self._first_step = asyncio.Event()
        self._changed_outside: Callable[[], None] = _nobody
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once somebody is ready; an error where nobody ever can be."""

    @property
    def places(self) -> Sequence[Seat]:
        """See `Crew.places`."""
        return self._seats

    @property
    def ready(self) -> bool:
        """Whether questions are worked on now."""
        return any(seat.state == "ready" for seat in self._seats)

    def attach(self, changed: Callable[[], None], lost: Lost) -> None:
        """See `Crew.attach`."""
        self._changed_outside = changed
        self._seats = [
            Seat(plan, self._rules, changed=self._changed, lost=lost, clock=self._clock)
            for plan in self._plans
        ]

    def why_not(self) -> str | None:
        """See `Crew.why_not`."""
        reasons = {f"{seat.plan.label}: {seat.why}" for seat in self._seats if seat.why}
        return "; ".join(sorted(reasons)) or None

    def begin(self) -> "asyncio.Task[None]":
        """Start the workers and keep them alive until `end`; the task ends before only by a fault of ours."""
        self._working = asyncio.create_task(self._work())
        return self._working

    async def end(self) -> None:
        """End the workers; what they still do is lost."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait({self._working})
        await asyncio.gather(*(seat.close(_END_SECONDS) for seat in self._seats))

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for seat in self._seats:
                group.create_task(seat.run())
                if seat is self._seats[0] and len(self._seats) > 1:
                    await self._warmed()

    async def _warmed(self) -> None:
        """Wait until the first worker is ready or lost, but not for ever: what hangs there may not hold up others."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WARM_SECONDS):
                await self._first_step.wait()

    def _changed(self) -> None:
        self._first_step.set()
        if not self.begun.done():
            fault = self._hopeless()
            if self.ready:
                self.begun.set_result(None)
            elif fault is not None:
                self.begun.set_exception(fault)
        self._changed_outside()

    def _hopeless(self) -> GpupoolError | None:
        """Return why a server that has never been ready cannot become it."""
        faults = [seat.unfit for seat in self._seats if seat.unfit is not None]
        if len(faults) == len(self._seats):
            return faults[0]
        if all(seat.state == "quarantined" for seat in self._seats):
            return WorkerLostError(f"No worker could be started: {self.why_not()}.")
        return None


def _nobody() -> None:
    """Stands in until somebody is attached."""
