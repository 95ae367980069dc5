"""The place of one worker: the process that sits there now, and what happens when it dies or hangs.

A process that dies is replaced, at once or after a rest. One that hangs is asked to stop what it hangs in, then
killed. One whose card fails or runs out of memory is ended, which also gives the card's memory back and a new context to
the next; one whose card answers wrong goes to quarantine. The questions it had go back to whoever handed them out.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import structlog

from gpupool.contracts.problems import error_of
from gpupool.core.clock import Clock, SystemClock
from gpupool.core.errors import GpupoolError
from gpupool.devices.recovery.errors import DeviceFaultError
from gpupool.pos.errors import NoProofError
from gpupool.recompute.server.engine import EngineFaultError, WrongAnswerError
from gpupool.recompute.server.messages import Ask, Cancel, Done, Failed, Message, Ping, Pong, Ready, Unfit
from gpupool.recompute.server.restarts import RestartPolicy, Restarts
from gpupool.recompute.server.staffing import WorkerPlan
from gpupool.recompute.server.tickets import Answer, Ticket, WorkerLostError
from gpupool.recompute.server.watchdog import LOOKS, PATIENCE, PULSE, Watchdog
from gpupool.recompute.server.worker_process import WorkerProcess

log = structlog.get_logger(__name__)
SeatState = Literal["starting", "ready", "resting", "quarantined"]
START_SECONDS: Final = 300.0
"""For compiling and the self-test; a worker that takes longer hangs in a driver."""
KILL_SECONDS: Final = 10.0
"""For the system to take a killed process away; one that a driver holds stays longer."""
_FIRST_START_GUESS: Final = 2.0
Lost = Callable[[Ticket, GpupoolError, WorkerPlan], None]
"""Told of a question that came back unanswered: it, why, and from whom."""


@dataclass(frozen=True, slots=True)
class _End:
    """Why a process is ended."""

    why: str
    useless: bool = False
    """It goes to quarantine at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRules:
    """How patient a server is with its workers."""

    stuck_seconds: float = 30.0
    """How long a worker may make no step."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    log_level: str = "INFO"


class Seat:
    """One worker, over all of its processes."""

    def __init__(
        self,
        plan: WorkerPlan,
        rules: SeatRules,
        *,
        changed: Callable[[], None],
        lost: Lost,
        clock: Clock | None = None,
    ) -> None:
        """``changed``: it may be free, or ready, now."""
        self.plan, self._rules, self._changed, self._lost = plan, rules, changed, lost
        self._clock: Clock = clock or SystemClock()
        self.state: SeatState = "starting"
        self.why: str | None = None
        """What the last process died of."""
        self.unfit: GpupoolError | None = None
        """Why the last process said it cannot be used."""
        self.restarts = Restarts(rules.restarts)
        self._process: WorkerProcess | None = None
        self._given_up: asyncio.Future[_End] | None = None
        self._tickets: dict[int, Ticket] = {}
        self._stuck: set[int] = set()
        self._steps: dict[int, int] = {}
        self._pulse = self._life = 0
        self._began = self._clock.monotonic()
        self._ready_since: float | None = None
        self._start_seconds = _FIRST_START_GUESS
        self._back_at = 0.0

    @property
    def tickets(self) -> list[Ticket]:
        """What is worked on, questions that nobody waits for any more included."""
        return list(self._tickets.values())

    @property
    def deaths(self) -> int:
        """Processes of it that were lost."""
        return self.restarts.deaths

    def seconds_until_ready(self) -> float:
        """Return how long it takes until questions are taken, as far as known."""
        now = self._clock.monotonic()
        if self.state == "ready":
            return 0.0
        if self.state == "starting":
            return max(0.1, self._start_seconds - (now - self._began))
        return max(0.0, self._back_at - now) + self._start_seconds

    def take(self, ticket: Ticket) -> None:
        """Work on a question; only where it is ready and has a thread free."""
        now = self._clock.monotonic()
        ticket.began = now
        self._tickets[ticket.number] = ticket
        self._send(Ask(ticket.number, ticket.kind, ticket.question, max(0.0, ticket.deadline - now)))

    def cancel(self, ticket: Ticket) -> None:
        """Stop working on a question, where this worker has it."""
        if ticket.number in self._tickets:
            self._send(Cancel(ticket.number))

    def give_up(self, why: str, *, useless: bool = False) -> None:
        """End the process and replace it; one that is ``useless`` only after quarantine."""
        if self._given_up is None or self._given_up.done() or self.state not in {"starting", "ready"}:
            return
        self.state, self.why = "resting", why
        if useless:
            self._back_at = self._clock.monotonic() + self._rules.restarts.quarantine
        self._given_up.set_result(_End(why, useless))

    async def run(self) -> None:
        """Keep a process on this seat until cancelled."""
        while True:
            end = await self._one_life()
            why = end.why
            lived = 0.0 if self._ready_since is None else self._clock.monotonic() - self._ready_since
            rest = self.restarts.died(self._clock.monotonic(), lived, useless=end.useless)
            self.state, self.why = ("quarantined" if rest.quarantined else "resting"), why
            self._back_at = self._clock.monotonic() + rest.seconds
            log.error(
                "worker_quarantined" if rest.quarantined else "worker_died",
                device=self.plan.label,
                reason=why,
                deaths=self.restarts.deaths,
                again_in=rest.seconds,
                questions=len(self._tickets),
            )
            self._return_tickets(why)
            self._changed()
            await asyncio.sleep(rest.seconds)

    async def close(self, seconds: float) -> None:
        """End the process; call after `run` was cancelled."""
        process = self._process
        if process is None:
            return
        process.close()
        await asyncio.wait({process.ended}, timeout=seconds)
        if not process.ended.done():
            process.kill()
            await asyncio.wait({process.ended}, timeout=seconds)

    async def _one_life(self) -> _End:
        """Start a process, and return what it ended of."""
        self.state, self._ready_since, self.unfit = "starting", None, None
        self._began = self._clock.monotonic()
        self._pulse, self._steps, self._life = 0, {}, self._life + 1
        self._stuck.clear()
        try:
            process = WorkerProcess(
                self.plan.factory, self.plan.threads, self._rules.log_level, partial(self._hear, self._life)
            )
        except OSError as error:
            return _End(f"it could not be started: {error.strerror}")
        self._process = process
        given_up = self._given_up = asyncio.get_running_loop().create_future()
        watching = asyncio.create_task(self._watch())
        try:
            awaited: set[asyncio.Future[Any]] = {process.ended, watching, given_up}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if process.ended.done() and not given_up.done():
                return _End(self._words_of(process.ended.result()))
            process.kill()
            await asyncio.wait({process.ended}, timeout=KILL_SECONDS)
            stays = "" if process.ended.done() else f"; process {process.pid} does not even die of a kill"
            end = given_up.result() if given_up.done() else _End(watching.result())
            return replace(end, why=end.why + stays)
        finally:
            watching.cancel()

    def _words_of(self, status: int) -> str:
        if self.unfit is not None:
            return f"it is not fit: {self.unfit.message}"
        return f"it ended with signal {-status}" if status < 0 else f"it ended with status {status}"

    async def _watch(self) -> str:
        """Return once the process hangs, with the reason it is to be killed for."""
        watchdog, seconds = Watchdog(), self._rules.stuck_seconds
        while True:
            if self.state == "starting":
                # Compilers and drivers may be silent for long then.
                if self._clock.monotonic() - self._began > START_SECONDS:
                    return f"it was not ready after {START_SECONDS:g} s"
            else:
                times = watchdog.look({PULSE: self._pulse, **self._steps_of_tickets()})
                self._stop_stuck({number for number, still in times.items() if still >= LOOKS} - {PULSE})
                if times[PULSE] >= LOOKS + PATIENCE:
                    return f"the whole process made no step for {seconds:g} s"
                if max(times.values()) >= LOOKS + PATIENCE:
                    return f"{len(self._stuck)} of its threads made no step for {seconds:g} s"
            self._send(Ping())
            await asyncio.sleep(seconds / LOOKS)

    def _stop_stuck(self, numbers: set[int]) -> None:
        """Ask what hangs to stop at its next checkpoint, should it ever come to one."""
        self._stuck |= numbers
        for number in numbers:
            self._send(Cancel(number))

    def _steps_of_tickets(self) -> dict[int, int]:
        return {number: self._steps.get(number, 0) for number in self._tickets}

    def _hear(self, life: int, message: Message) -> None:
        if life != self._life:
            return  # from one that was given up because it did not die
        if isinstance(message, Pong):
            self._pulse += 1
            self._steps = message.steps
        elif isinstance(message, Done | Failed):
            self._end(message)
        elif isinstance(message, Unfit):
            body = {"title": "", "status": 500, "detail": message.message}
            self.unfit = error_of(500, body | {"code": message.code, "remedy": message.remedy})
        elif isinstance(message, Ready):
            self.state, self.why = "ready", None
            self._ready_since = self._clock.monotonic()
            self._start_seconds = self._ready_since - self._began
            log.info("worker_ready", device=self.plan.label, seconds=round(self._start_seconds, 1))
            self._changed()

    def _end(self, message: Done | Failed) -> None:
        ticket = self._tickets.pop(message.number, None)
        if ticket is None:
            return
        if isinstance(message, Done):
            ticket.succeed(Answer(message.xs, message.seconds, self.plan))
        elif message.number in self._stuck:
            stuck = WorkerLostError("The worker made no step with this for too long.")
            self._lost(ticket, stuck, self.plan)
        else:
            body = {"title": "", "status": 500, "detail": message.message}
            self._fail(ticket, error_of(500, body | {"code": message.code, "remedy": message.remedy}))
        self._changed()

    def _fail(self, ticket: Ticket, error: GpupoolError) -> None:
        """Judge an error: what a card says is not the last word, and some errors are its own."""
        if self.plan.kind == "cpu" or not isinstance(
            error, DeviceFaultError | EngineFaultError | WrongAnswerError | NoProofError
        ):
            ticket.fail(error)
            return
        if isinstance(error, DeviceFaultError | EngineFaultError):
            self.give_up(f"its card failed: {error.message}")
        elif isinstance(error, WrongAnswerError):
            self.give_up("it gave a wrong answer", useless=True)
        self._lost(ticket, error, self.plan)

    def _return_tickets(self, why: str) -> None:
        tickets = self.tickets
        self._tickets.clear()
        # Each is put at the head of the queue, so the oldest comes last to stand first.
        for ticket in reversed(tickets):
            self._lost(
                ticket, WorkerLostError(f"The worker on {self.plan.label} was lost: {why}."), self.plan
            )

    def _send(self, message: Message) -> None:
        if self._process is not None:
            self._process.send(message)
