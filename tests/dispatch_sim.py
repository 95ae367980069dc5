"""A recompute server's queue before workers that only pretend to compute, in virtual time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from gpupool.core.errors import DeadlineError
from gpupool.pos.costs import Kind
from gpupool.recompute.demo import demo_request
from gpupool.recompute.server.questions import Question, level_of, read_proof_question
from gpupool.recompute.server.seat import Lost
from gpupool.recompute.server.staffing import WorkerPlan
from gpupool.recompute.server.suitability import Suitability
from gpupool.recompute.server.tickets import Answer, Ticket, WorkerLostError
from gpupool.recompute.server.work import WorkQueue

QUESTION = read_proof_question(demo_request().model_dump_json().encode())
STOPPING = 0.01
"""Seconds until a worker stops with what was cancelled."""


def question(number: int, level: int = 3) -> Question:
    """One of many."""
    return replace(QUESTION, plot_id=number.to_bytes(32), level=level)


def answer_to(asked: Question) -> tuple[int, ...]:
    """What every worker answers."""
    return (asked.plot_id[-1], asked.level)


class LoopClock:
    """The time of the running loop."""

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass(eq=False)
class PretendedPlace:
    """A worker that takes ``seconds`` for a proof at C3, twice as long for each level more."""

    plan: WorkerPlan
    seconds: float
    hangs: bool = False
    state: Literal["ready", "resting"] = "ready"
    why: str | None = None
    deaths: int = 0
    held: dict[int, tuple[Ticket, asyncio.TimerHandle | None]] = field(default_factory=dict)
    started: list[tuple[float, Ticket]] = field(default_factory=list)
    changed: Callable[[], None] = lambda: None
    lost: Lost = lambda *_: None

    @property
    def tickets(self) -> list[Ticket]:
        return [ticket for ticket, _ in self.held.values()]

    def seconds_until_ready(self) -> float:
        return 0.0 if self.state == "ready" else 0.5

    def take(self, ticket: Ticket) -> None:
        loop = asyncio.get_running_loop()
        assert self.state == "ready"
        assert len(self.held) < self.plan.threads, "more questions than threads"
        assert loop.time() < ticket.deadline, "started after its deadline"
        assert ticket.number not in self.held
        assert ticket.wanted
        self.started.append((loop.time(), ticket))
        cost = self.seconds * 2.0 ** (level_of(ticket.question) - 3)
        timer = None if self.hangs else loop.call_later(cost, self._done, ticket, cost)
        self.held[ticket.number] = ticket, timer

    def cancel(self, ticket: Ticket) -> None:
        _, timer = self.held.get(ticket.number, (None, None))
        if timer is not None:
            timer.cancel()
            stop = asyncio.get_running_loop().call_later(STOPPING, self._stopped, ticket)
            self.held[ticket.number] = ticket, stop

    def give_up(self, why: str, *, useless: bool = False) -> None:
        """Lose the process; a new one is there after half a second."""
        held, self.held = list(self.held.values()), {}
        self.state, self.why, self.deaths = "resting", why, self.deaths + 1
        for ticket, timer in reversed(held):
            if timer is not None:
                timer.cancel()
            self.lost(ticket, WorkerLostError(f"The worker was lost: {why}."), self.plan)
        self.changed()
        asyncio.get_running_loop().call_later(0.5, self._back)

    def _back(self) -> None:
        self.state, self.why = "ready", None
        self.changed()

    def _done(self, ticket: Ticket, cost: float) -> None:
        del self.held[ticket.number]
        assert isinstance(ticket.question, Question)
        ticket.succeed(Answer(answer_to(ticket.question), cost, self.plan))
        self.changed()

    def _stopped(self, ticket: Ticket) -> None:
        del self.held[ticket.number]
        ticket.fail(DeadlineError())
        self.changed()


def place(
    kind: Literal["cpu", "gpu"], seconds: float, threads: int, name: str = "", *, hangs: bool = False
) -> PretendedPlace:
    """A worker; ``name`` tells it from others of its kind."""
    plan = WorkerPlan(
        kind=kind, name=kind + name, engine=kind, factory=f"{kind}:{name}:make", threads=threads
    )
    return PretendedPlace(plan, seconds, hangs)


class PretendedCrew:
    """Several of them."""

    def __init__(self, places: Sequence[PretendedPlace]) -> None:
        self.places = places

    def attach(self, changed: Callable[[], None], lost: Lost) -> None:
        for each in self.places:
            each.changed, each.lost = changed, lost

    def why_not(self) -> str | None:
        return next((each.why for each in self.places if each.why), None)


class Stage:
    """A queue before its crew; make it in a running loop."""

    def __init__(self, *places: PretendedPlace, room: int = 10_000) -> None:
        self.crew = PretendedCrew(places)
        self.queue = WorkQueue(self.crew, room, LoopClock(), Suitability())

    def ask(
        self, asked: Question, seconds: float = 1e6, client: str = "", kind: Kind = "proof"
    ) -> "asyncio.Task[Answer]":
        """Ask something that is to be answered within ``seconds``."""
        deadline = asyncio.get_running_loop().time() + seconds
        return asyncio.create_task(self.queue.run(kind, asked, deadline, client))

    async def warm(self) -> None:
        """Let every worker become known."""
        for number, each in enumerate(self.crew.places):
            work = Ticket("proof", question(number), 1e9).work
            for _ in range(20):
                self.queue.rates.learn(work, each.seconds, each.plan.factory)

    def forgotten(self) -> bool:
        """Tell whether nothing is left of anybody's questions."""
        idle = not self.queue.waiting and not self.queue.running
        return idle and not self.queue._in_flight and not self.queue._line._clients
