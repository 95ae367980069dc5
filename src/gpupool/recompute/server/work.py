"""The dispatcher: what waits, for whom, and which worker takes it; honest about time.

A request that cannot be done in time is refused at once, with what is ahead of it counted; one whose deadline passed
while it waited, or cannot be met any more, is never started; one whose client left, or whose deadline passes while it
runs, stops at its next checkpoint. One whose worker was lost, or whose card failed, goes to another. Who asks what is
being computed waits for the same computation, and what was answered lately is answered again without one.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from gpupool.core.clock import Clock, SystemClock
from gpupool.core.errors import BusyError, DeadlineError, GpupoolError
from gpupool.pos.errors import NoProofError
from gpupool.recompute.server.answers import KnownAnswers
from gpupool.recompute.server.crew import Crew, Place
from gpupool.recompute.server.line import Line
from gpupool.recompute.server.questions import AnyQuestion, Asking, level_of, numbers_in
from gpupool.recompute.server.rates import Rates
from gpupool.recompute.server.schedule import Schedule, Slot
from gpupool.recompute.server.staffing import WorkerPlan
from gpupool.recompute.server.suitability import CARD_TRIES, Suitability
from gpupool.recompute.server.tickets import Answer, Ticket, WorkerLostError

log = structlog.get_logger(__name__)
_WEIGHT: Final = 0.2
"""How much the newest time counts in the mean that Retry-After is made of."""
_LONGEST_RETRY_SECONDS: Final = 60
_LOOK_SECONDS: Final = 0.05
"""How soon a question that waits for a fast worker, while a slow one is idle, is looked at again."""
_STOP_SECONDS: Final = 0.01
"""Until a worker stops with what nobody waits for."""
_GUESS_TRUST: Final = 0.5
"""The part of a guessed time that counts before anybody is refused because of it."""
_LONGEST_LOOK: Final = 128
"""Questions ahead that are looked at one by one; a longer queue is taken to go on at the same pace."""
_Key = tuple[Asking, AnyQuestion]


class OverloadedError(BusyError):
    """As many requests wait here as may wait."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(
            f"The queue of this server is full; try again in {retry_after} s, or another server.",
            retry_after=retry_after,
        )


class WorkQueue:
    """Hands questions to a crew."""

    def __init__(
        self,
        crew: Crew,
        room: int,
        clock: Clock | None = None,
        suitability: Suitability | None = None,
    ) -> None:
        self.crew, self.room = crew, room
        self.slowdown: Callable[[], float] = lambda: 1.0
        """How many times as long as alone whoever computes on the CPU takes now, because of others there (>= 1)."""
        self.clock: Clock = clock or SystemClock()
        self.rates, self.known = Rates(), KnownAnswers()
        self.joined = 0
        """Requests that waited for what somebody else had asked."""
        self._suitability = suitability or Suitability()
        self._line: Line[Ticket] = Line()
        self._in_flight: dict[_Key, Ticket] = {}
        self._mean_seconds = 0.1
        self._look: asyncio.TimerHandle | None = None
        crew.attach(self._hand_out, self._take_back)

    @property
    def waiting(self) -> int:
        """Questions that wait for a worker."""
        return len(self._line)

    @property
    def running(self) -> int:
        """Questions that are worked on, or that a worker has not stopped with yet."""
        return sum(len(place.tickets) for place in self.crew.places)

    @property
    def slots(self) -> int:
        """Questions that can be worked on at once, when all workers are well."""
        return max(1, sum(place.plan.threads for place in self.crew.places))

    @property
    def ready(self) -> bool:
        """Whether questions are worked on now."""
        return any(place.state == "ready" for place in self.crew.places)

    async def run(
        self, kind: Asking, question: AnyQuestion, deadline: float, client: str = "", *, fresh: bool = False
    ) -> Answer:
        """Return the answer to a question; ``deadline`` is in seconds of the clock's monotonic time.

        ``client``: among whom the server is shared fairly. ``fresh``: compute, whatever is known already.

        Raises OverloadedError at once where too many wait, DeadlineError where it is not done in time, or cannot be,
        WorkerLostError where two workers were lost over it or there is no time for the second, or what the engine
        raises. Cancelling this call takes the question out of the queue or stops the work at its next checkpoint,
        unless others wait for it too.
        """
        key = kind, question
        known = None if fresh else self.known.get(key)
        if known is not None:
            return Answer(known, 0.0, None)
        while True:
            ticket = None if fresh else self._joinable(key, deadline)
            joined = ticket is not None
            if ticket is None:
                ticket = self._admit(kind, question, deadline, client)
                if not fresh:
                    self._in_flight[key] = ticket
                self._hand_out()
            try:
                return await self._outcome(ticket, deadline)
            except DeadlineError:
                # What ended then may be the time of the one who asked first.
                if not joined or self.clock.monotonic() >= deadline:
                    raise

    async def drain(self, seconds: float) -> bool:
        """Wait until nothing waits or runs, at most ``seconds``; True when that is so."""
        deadline = self.clock.monotonic() + seconds
        while self.waiting or self.running:
            if self.clock.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    # -- coming in -------------------------------------------------------------------------------------------

    def _joinable(self, key: _Key, deadline: float) -> Ticket | None:
        """Return the ticket of the same question, with time for whoever joins."""
        ticket = self._in_flight.get(key)
        if ticket is None or not ticket.wanted:
            return None
        self.joined += 1
        if deadline > ticket.deadline:
            ticket.deadline = deadline
            self._line.reorder(ticket)
        return ticket

    def _admit(self, kind: Asking, question: AnyQuestion, deadline: float, client: str) -> Ticket:
        """Let a question wait; raise where there is no room or no time."""
        if deadline <= self.clock.monotonic():
            raise DeadlineError
        ticket = Ticket(kind, question, deadline, client)
        ticket.cost = self._cost(ticket)
        victim = None
        jobs = self.waiting + self.running
        # Whoever finds a free worker does not wait, so the room is what may queue behind busy ones.
        if jobs >= self.slots + self.room:
            victim = self._line.victim(client)
            if victim is None:
                raise OverloadedError(self._retry_after(jobs))
        self._line.add(ticket)
        try:
            self._check_time(ticket)
        except GpupoolError:
            self._line.remove(ticket)
            raise
        if victim is not None:
            self._line.remove(victim)
            victim.fail(OverloadedError(self._retry_after(jobs)))
        return ticket

    def _check_time(self, ticket: Ticket) -> None:
        """Raise where a ticket, at its place in the line, cannot be done in time, as far as known."""
        left = ticket.deadline - self.clock.monotonic()
        slot = self._forecast(ticket)
        if slot is None or slot.finish <= left:
            return
        if not self.ready:
            raise WorkerLostError(
                f"No worker is ready within the {left * 1000:.0f} ms that are left ({self.crew.why_not()})."
            )
        raise self._too_late(ticket, left, slot)

    def _too_late(self, ticket: Ticket, left: float, slot: Slot[Place]) -> DeadlineError:
        seconds = slot.finish - slot.start
        if seconds > left:
            self.rates.doubt(ticket.work)
        return DeadlineError(
            f"This cannot be done in the {left * 1000:.0f} ms that are left: a {ticket.kind} at"
            f" {'strength' if ticket.kind == 'solve' else 'level'} {level_of(ticket.question)} takes this server"
            f" {seconds * 1000:.0f} ms, after {slot.start * 1000:.0f} ms of waiting."
        )

    def _forecast(self, ticket: Ticket) -> Slot[Place] | None:
        """Return when a ticket in the line would be done, at best; None where nobody here may do it."""

        def cost(place: Place, other: Ticket) -> float | None:
            return self._at_best(place, other, 0.0 if other is ticket else _GUESS_TRUST)

        schedule = Schedule(self._free_times(_GUESS_TRUST), cost)
        ahead = 0
        for other in self._line.order():
            if other is ticket:
                break
            ahead += 1
            if ahead <= _LONGEST_LOOK:
                schedule.put(other)
        slot = schedule.put(ticket)
        if slot is None or ahead <= _LONGEST_LOOK:
            return slot
        start = slot.start * ahead / _LONGEST_LOOK
        return Slot(slot.worker, start, start + slot.finish - slot.start)

    # -- going out -------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Start what is to be started now, and fail what can no longer be done."""
        if not len(self._line):
            return
        if self._look is not None:
            self._look.cancel()
            self._look = None
        ready = {place: times for place, times in self._free_times().items() if place.state == "ready"}
        schedule = Schedule(ready, self._expected)
        started: list[tuple[Ticket, Place]] = []
        late: list[Ticket] = []
        for ticket in self._line.order():
            if not schedule.idle:
                break
            if self._is_late(ticket, ready):
                late.append(ticket)
                continue
            slot = schedule.put(ticket)
            if slot is not None and slot.start <= 0:
                started.append((ticket, slot.worker))
                self._pass_over(ticket, slot.worker, ready)
        for ticket in late:
            self._line.remove(ticket)
            ticket.fail(ticket.lost or DeadlineError("There is no time left to do this."))
        for ticket, place in started:
            self._line.serve(ticket)
            ticket.began = self.clock.monotonic()
            place.take(ticket)
        if len(self._line) and schedule.idle:
            self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._hand_out)

    def _pass_over(self, ticket: Ticket, chosen: Place, ready: Mapping[Place, list[float]]) -> None:
        """Let cards that stay idle be tried again one day."""
        for place, times in ready.items():
            if place is not chosen and place.plan.kind == "gpu" and min(times) <= 0:
                self.rates.passed_over(ticket.work, place.plan.factory)

    def _is_late(self, ticket: Ticket, ready: Mapping[Place, list[float]]) -> bool:
        left = ticket.deadline - self.clock.monotonic()
        if left <= 0:
            return True
        costs = [self._at_best(place, ticket) for place in ready]
        return min((seconds for seconds in costs if seconds is not None), default=0.0) > left

    def _free_times(self, trust: float = 1.0) -> dict[Place, list[float]]:
        """Return in how many seconds each thread of each worker is free, as far as known.

        ``trust``: below 1, the best that can be hoped for, and that part of what is guessed.
        """
        times = {}
        for place in self.crew.places:
            until = place.seconds_until_ready()
            running = [until + self._rest(place, ticket, trust) for ticket in place.tickets]
            times[place] = running + [until] * (place.plan.threads - len(running))
        return times

    def _rest(self, place: Place, ticket: Ticket, trust: float) -> float:
        """Return the seconds (> 0) that a running question still takes.

        Whatever takes longer than expected is expected to take as much longer again: a worker that hangs does not
        look as if it were free at any moment.
        """
        if not ticket.wanted or ticket.began is None:
            return _STOP_SECONDS
        worker = place.plan.factory
        best = self.rates.best(ticket.work, worker) if trust < 1 else None
        expected = self.rates.expected(ticket.work, worker) * trust if best is None else best
        rest = expected * self._slowdown(place) - (self.clock.monotonic() - ticket.began)
        return max(rest if trust < 1 else abs(rest), 1e-6)

    def _expected(self, place: Place, ticket: Ticket) -> float | None:
        """Return the seconds that a worker is expected to take; None where it may not."""
        if not self._suitability.may(place.plan, ticket, with_cpu=self._has_cpu()):
            return None
        return self.rates.expected(ticket.work, place.plan.factory) * self._slowdown(place)

    def _at_best(self, place: Place, ticket: Ticket, trust: float = 0.0) -> float | None:
        """Return the seconds that a worker takes at best, or the part ``trust`` of a guess; None where it may not."""
        if not self._suitability.may(place.plan, ticket, with_cpu=self._has_cpu()):
            return None
        best = self.rates.best(ticket.work, place.plan.factory)
        expected = self.rates.expected(ticket.work, place.plan.factory) * trust if best is None else best
        return expected * self._slowdown(place)

    def _slowdown(self, place: Place) -> float:
        return self.slowdown() if place.plan.kind == "cpu" else 1.0

    def _has_cpu(self) -> bool:
        return any(place.plan.kind == "cpu" and place.state == "ready" for place in self.crew.places)

    def _cost(self, ticket: Ticket) -> float:
        """Return what a question costs its client: the time of the worker that is fastest with it."""
        costs = [self._expected(place, ticket) for place in self.crew.places]
        return min((seconds for seconds in costs if seconds is not None), default=self._mean_seconds)

    # -- coming back -----------------------------------------------------------------------------------------

    async def _outcome(self, ticket: Ticket, deadline: float) -> Answer:
        """Wait for what becomes of a ticket."""
        ticket.waiters += 1
        try:
            left = max(0.0, deadline - self.clock.monotonic())
            await asyncio.wait({ticket.outcome}, timeout=left)
            if not ticket.outcome.done():
                raise ticket.lost or DeadlineError()
            answer = ticket.outcome.result()
            self._learn(ticket, answer)
            return answer
        finally:
            ticket.waiters -= 1
            if not ticket.waiters:
                self._drop(ticket)

    def _learn(self, ticket: Ticket, answer: Answer) -> None:
        """Take in time and answer of a ticket, once."""
        key: _Key = ticket.kind, ticket.question
        if answer.worker is None or ticket.began is None:
            return
        ticket.began = None
        alone = answer.seconds / (self.slowdown() if answer.worker.kind == "cpu" else 1.0)
        self.rates.learn(ticket.work, alone, answer.worker.factory)
        self._mean_seconds += _WEIGHT * (answer.seconds - self._mean_seconds)
        self.known.put(key, answer.xs, numbers_in(ticket.question))
        if ticket.doubted is not None:
            for place in self.crew.places:
                if place.plan == ticket.doubted:
                    place.give_up("it found no proof where there is one", useless=True)

    def _take_back(self, ticket: Ticket, error: GpupoolError, plan: WorkerPlan) -> None:
        """Let another worker do what this one could not, if there is one in time; whoever waits is told otherwise."""
        ticket.began = None
        if not ticket.wanted:
            return
        ticket.tries += 1
        ticket.lost = error
        if plan.kind == "gpu":
            ticket.avoided.add(plan.factory)
            if isinstance(error, NoProofError):
                ticket.doubted = plan
        if self._may_try_again(ticket, plan):
            self._line.add_first(ticket)
            log.info("question_tried_again", device=plan.label, reason=error.message, tries=ticket.tries)
        else:
            ticket.fail(error)

    def _may_try_again(self, ticket: Ticket, plan: WorkerPlan) -> bool:
        most = CARD_TRIES if plan.kind == "gpu" and self._has_cpu() else 1
        if ticket.doubted is not None and not self._has_cpu():
            return False
        if ticket.tries > most:
            return False
        left = ticket.deadline - self.clock.monotonic()
        times = [
            place.seconds_until_ready() + (self._at_best(place, ticket) or 0.0) for place in self.crew.places
        ]
        return min(times) < left

    def _drop(self, ticket: Ticket) -> None:
        """Forget a ticket that nobody waits for."""
        if ticket.wanted:
            ticket.outcome.cancel()
        elif not ticket.outcome.cancelled():
            ticket.outcome.exception()  # so that the loop does not complain about one that nobody took
        key = ticket.kind, ticket.question
        if self._in_flight.get(key) is ticket:
            del self._in_flight[key]
        self._line.remove(ticket)
        for place in self.crew.places:
            place.cancel(ticket)

    def _retry_after(self, jobs: int) -> int:
        seconds = jobs * self._mean_seconds / self.slots
        return max(1, min(_LONGEST_RETRY_SECONDS, math.ceil(seconds)))
