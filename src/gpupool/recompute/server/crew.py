"""All workers of a server, as the queue sees them: who is free, and when somebody will be."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gpupool.contracts.recompute import RecomputeDevice
from gpupool.core.clock import Clock
from gpupool.core.errors import GpupoolError
from gpupool.recompute.server.seat import Seat, SeatRules
from gpupool.recompute.server.staffing import WorkerPlan
from gpupool.recompute.server.tickets import Ticket, WorkerLostError

_END_SECONDS: Final = 0.5
"""For a worker to end by itself; one that hangs is killed then."""


class Crew(Protocol):
    """Who answers questions."""

    @property
    def slots(self) -> int:
        """Questions that can be worked on at once, when all are well; at least 1."""
        ...

    @property
    def ready(self) -> bool:
        """Whether questions are worked on now."""
        ...

    @property
    def tickets(self) -> list[Ticket]:
        """What is worked on."""
        ...

    @property
    def restarts(self) -> int:
        """Worker processes that were lost, in all."""
        ...

    def attach(self, changed: Callable[[], None], lost: Callable[[Ticket, WorkerLostError], None]) -> None:
        """Name who is told that somebody may be free, and who gets questions back; once, before anything else."""
        ...

    def take(self, ticket: Ticket) -> bool:
        """Work on a question; False where nobody is free."""
        ...

    def cancel(self, ticket: Ticket) -> None:
        """Stop working on a question."""
        ...

    def seconds_until_ready(self) -> float:
        """Return how long until somebody takes questions, as far as known."""
        ...

    def why_not(self) -> str | None:
        """Return what is wrong where nobody is ready; None where the crew starts for the first time."""
        ...

    def devices(self) -> list[RecomputeDevice]:
        """Return what computes, and how it is."""
        ...


class ProcessCrew:
    """Workers that are processes; see `Crew`."""

    def __init__(self, plans: Sequence[WorkerPlan], rules: SeatRules, clock: Clock | None = None) -> None:
        self._plans, self._rules, self._clock = plans, rules, clock
        self._seats: list[Seat] = []
        self._working: asyncio.Task[None] | None = None
        self._changed_outside: Callable[[], None] = _nobody
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once somebody is ready; an error where nobody ever can be."""

    @property
    def slots(self) -> int:
        """See `Crew.slots`."""
        return sum(plan.threads for plan in self._plans)

    @property
    def ready(self) -> bool:
        """See `Crew.ready`."""
        return any(seat.state == "ready" for seat in self._seats)

    @property
    def tickets(self) -> list[Ticket]:
        """See `Crew.tickets`."""
        return [ticket for seat in self._seats for ticket in seat.tickets]

    @property
    def restarts(self) -> int:
        """See `Crew.restarts`."""
        return sum(seat.restarts.deaths for seat in self._seats)

    def attach(self, changed: Callable[[], None], lost: Callable[[Ticket, WorkerLostError], None]) -> None:
        """See `Crew.attach`."""
        self._changed_outside = changed
        self._seats = [
            Seat(plan, self._rules, changed=self._changed, lost=lost, clock=self._clock)
            for plan in self._plans
        ]

    def take(self, ticket: Ticket) -> bool:
        """See `Crew.take`; the worker with the smallest share of its threads at work takes it."""
        free = [seat for seat in self._seats if seat.free]
        if not free:
            return False
        min(free, key=lambda seat: len(seat.tickets) / seat.plan.threads).take(ticket)
        return True

    def cancel(self, ticket: Ticket) -> None:
        """See `Crew.cancel`."""
        for seat in self._seats:
            seat.cancel(ticket)

    def seconds_until_ready(self) -> float:
        """See `Crew.seconds_until_ready`."""
        return min(seat.seconds_until_ready() for seat in self._seats)

    def why_not(self) -> str | None:
        """See `Crew.why_not`."""
        reasons = {f"{seat.plan.name}: {seat.why}" for seat in self._seats if seat.why}
        return "; ".join(sorted(reasons)) or None

    def devices(self) -> list[RecomputeDevice]:
        """See `Crew.devices`."""
        return [
            RecomputeDevice(
                kind=seat.plan.kind,
                name=seat.plan.name,
                engine=seat.plan.engine,
                workers=seat.plan.threads,
                state=seat.state,
                restarts=seat.restarts.deaths,
                why=seat.why,
            )
            for seat in self._seats
        ]

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

    def _changed(self) -> None:
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
