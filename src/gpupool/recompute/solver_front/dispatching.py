"""Which worker completes a partial proof, and who else is asked when that one fails or keeps silent.

A farmer that sends a partial proof has won: 28 s later the answer is worthless, and it never asks again. So a failure
leads to the next worker at once, silence to a second one beside the first, and the first right answer ends the others.
With nobody left to ask, those who failed are asked again until the time is up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from gpupool.balancing import NodeState, Outcome, Policy, Pool, Ticket
from gpupool.core.errors import DeadlineError, UnavailableError
from gpupool.recompute.solver_front.attempts import Asked, AttemptError
from gpupool.solvers.questions import UnsolvedError

log = structlog.get_logger(__name__)
POLICY: Final = Policy(
    first_guess_s=2.0,
    first_silence_s=8.0,
    silence_factor=3.0,
    silence_floor_s=3.0,
    # Farmers ask a few times a day: what was learned holds until it is learned anew.
    stale_after_s=7 * 86_400.0,
    idle_probe_s=5.0,
)
MOST_PATIENCE: Final = 10.0
"""Seconds of silence after which a second worker is asked in any case."""
_FIRST_PAUSE: Final = 0.25
"""Before workers that failed are asked again, with nobody else left; it doubles each time."""
_LONGEST_PAUSE: Final = 2.0
_CONFIRMATIONS: Final = 2
"""Workers that have to say that there is no proof."""
Ask = Callable[[str, Asked, float], Awaitable[bytes]]
"""Asks a worker by name for a proof within some seconds; raises AttemptError."""


@dataclass(slots=True)
class Course:
    """How one question went, for whoever logs it."""

    tries: int = 0
    worker: str | None = None
    """Who answered."""
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Try:
    name: str
    ticket: Ticket
    until: float
    """When a second worker is asked beside it."""


class Dispatcher:
    """Sends questions to the workers of a pool."""

    def __init__(
        self,
        pool: Pool,
        ask: Ask,
        clock: Callable[[], float],
        *,
        told_seconds: Callable[[int, int], Mapping[str, float]] = lambda k, strength: {},
        counted: Callable[[str, Outcome], None] = lambda worker, outcome: None,
    ) -> None:
        """``told_seconds``: how long each worker says that it takes for k and strength. ``counted``: hears of each try."""
        self.pool = pool
        self._ask, self._clock = ask, clock
        self._told_seconds, self._counted = told_seconds, counted
        self._taught: set[tuple[str, str]] = set()

    async def solve(self, asked: Asked, deadline: float, course: Course | None = None) -> bytes:
        """Return the proof; ``deadline`` in seconds of the clock.

        Raises UnsolvedError where workers found none, UnavailableError where no worker is there, DeadlineError.
        """
        search = _Search(self, asked, deadline, course or Course())
        try:
            return await search.run()
        finally:
            await search.close()

    def choose(self, asked: Asked, exclude: frozenset[str]) -> str | None:
        """Return where a question is expected to be finished first."""
        kind, now = kind_of(asked), self._clock()
        self._teach(asked, kind, now)
        return self.pool.pick(now, kind, exclude)

    def begin(
        self, name: str, asked: Asked, deadline: float, *, again: bool
    ) -> "tuple[_Try, asyncio.Task[bytes]]":
        """Ask a worker."""
        now, kind = self._clock(), kind_of(asked)
        ticket = self.pool.started(name, now, kind, again=again)
        patience = min(MOST_PATIENCE, self.pool.silence_limit(name, kind, now))
        task = asyncio.ensure_future(self._ask(name, asked, deadline - now))
        return _Try(name, ticket, now + patience), task

    def end(self, tried: _Try, outcome: Outcome, why: str = "") -> None:
        """Count how a try ended."""
        self.pool.finished(tried.ticket, self._clock(), outcome, why)
        self._counted(tried.name, outcome)

    def now(self) -> float:
        """Return the seconds of the clock."""
        return self._clock()

    def _teach(self, asked: Asked, kind: str, now: float) -> None:
        """Take what workers say of their speed for their first answer of a kind: cores and strength decide at once."""
        told = self._told_seconds(asked.question.k, asked.question.strength)
        serving = {NodeState.LIVE, NodeState.STARTING}
        for view in self.pool.view(now):
            seconds = told.get(view.name)
            if seconds is None or (view.name, kind) in self._taught or view.state not in serving:
                continue
            self._taught.add((view.name, kind))
            ticket = self.pool.started(view.name, now - seconds, kind, again=True)
            self.pool.finished(ticket, now, Outcome.OK)


class _Search:
    """One question on its way."""

    def __init__(self, dispatcher: Dispatcher, asked: Asked, deadline: float, course: Course) -> None:
        self._dispatcher, self._asked, self._deadline, self._course = dispatcher, asked, deadline, course
        self._running: dict[asyncio.Task[bytes], _Try] = {}
        self._failed: set[str] = set()
        self._unsolved: set[str] = set()
        self._pause = _FIRST_PAUSE

    async def run(self) -> bytes:
        while True:
            left = self._deadline - self._dispatcher.now()
            if left <= 0:
                raise self._too_late()
            if not self._waits():
                self._ask_another()
            if self._running:
                await asyncio.wait(
                    self._running, timeout=self._look_in(left), return_when=asyncio.FIRST_COMPLETED
                )
            else:
                # Whoever failed may be back, or somebody new be there.
                self._failed.clear()
                await asyncio.sleep(min(left, self._pause))
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            for task in [task for task in self._running if task.done()]:
                proof = self._take(task)
                if proof is not None:
                    return proof
            self._give_up_if_there_is_none()

    async def close(self) -> None:
        """End what is still asked."""
        tasks = list(self._running)
        for task, tried in self._running.items():
            task.cancel()
            late = self._dispatcher.now() >= self._deadline
            self._dispatcher.end(tried, Outcome.TIMED_OUT if late else Outcome.CANCELLED)
        self._running.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _waits(self) -> bool:
        """Tell whether somebody has the question who has not kept silent for too long."""
        now = self._dispatcher.now()
        return any(tried.until > now for tried in self._running.values())

    def _look_in(self, left: float) -> float:
        """Return in how many seconds there may be something to do."""
        now = self._dispatcher.now()
        patient = [tried.until - now for tried in self._running.values() if tried.until > now]
        return min([left, *patient] if patient else [left, _FIRST_PAUSE])

    def _ask_another(self) -> None:
        busy = {tried.name for tried in self._running.values()}
        name = self._dispatcher.choose(self._asked, frozenset(busy | self._failed | self._unsolved))
        if name is None:
            return
        tried, task = self._dispatcher.begin(
            name, self._asked, self._deadline, again=bool(self._course.tries)
        )
        self._running[task] = tried
        self._course.tries += 1

    def _take(self, task: asyncio.Task[bytes]) -> bytes | None:
        tried = self._running.pop(task)
        try:
            proof = task.result()
        except AttemptError as error:
            self._dispatcher.end(tried, error.outcome, error.why)
            (self._unsolved if error.unsolved else self._failed).add(tried.name)
            fault = f"{tried.name}: {error.why}"
            if fault not in self._course.faults:
                self._course.faults.append(fault)
                log.warning("worker_failed", request=self._asked.number, worker=tried.name, why=error.why)
            return None
        self._dispatcher.end(tried, Outcome.OK)
        self._course.worker = tried.name
        return proof

    def _give_up_if_there_is_none(self) -> None:
        others = {view.name for view in self._dispatcher.pool.view(self._dispatcher.now())} - self._unsolved
        if self._unsolved and (len(self._unsolved) >= _CONFIRMATIONS or not others):
            raise UnsolvedError(
                f"{len(self._unsolved)} worker(s) found no proof for this: {'; '.join(self._course.faults)[:500]}."
            )

    def _too_late(self) -> DeadlineError | UnavailableError:
        faults = "; ".join(self._course.faults)[:500]
        if not self._course.tries:
            return UnavailableError(
                "There was no worker to ask.",
                remedy="See /v1/front for what is wrong with each; start some, or fix -n.",
            )
        return DeadlineError(
            f"No worker answered in time after {self._course.tries} tries ({faults or 'silence'})."
        )


def kind_of(asked: Asked) -> str:
    """Return what a worker's speed is learned by."""
    return f"k{asked.question.k} strength {asked.question.strength}"
