"""A recompute server in the test's own loop, with an engine that does what the test says."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import aiohttp

from gpupool.core.clock import Clock, SystemClock
from gpupool.core.errors import DeadlineError
from gpupool.core.listening import bind
from gpupool.pos.errors import AmbiguousProofError, NoProofError
from gpupool.recompute.demo import known_proof
from gpupool.recompute.server.app import RecomputeServer
from gpupool.recompute.server.engine import Checkpoint, Engine, WrongAnswerError
from gpupool.recompute.server.engine_threads import EngineThreads
from gpupool.recompute.server.main import listening
from gpupool.recompute.server.messages import Ask, Done, Failed
from gpupool.recompute.server.questions import Question
from gpupool.recompute.server.rates import Work
from gpupool.recompute.server.seat import Lost
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.server.staffing import WorkerPlan, cpu_worker
from gpupool.recompute.server.tickets import Answer, Ticket, WorkerLostError

PATIENCE = 30.0


class ScriptedEngine:
    """Answers with the known proof, as soon as its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[Question] = []
        self.stopped = 0
        self.fault: Exception | None = None

    def proof(self, question: Question, checkpoint: Checkpoint) -> tuple[int, ...]:
        self._wait(question, checkpoint)
        return known_proof().xs

    def quality(self, question: Question, checkpoint: Checkpoint) -> tuple[int, int]:
        self._wait(question, checkpoint)
        return known_proof().xs[0], known_proof().xs[1]

    def _wait(self, question: Question, checkpoint: Checkpoint) -> None:
        self.asked.append(question)
        while not self.gate.wait(0.005):
            try:
                checkpoint()
            except BaseException:
                self.stopped += 1
                raise
        if self.fault is not None:
            raise self.fault


ERRORS = {kind.code: kind for kind in (NoProofError, AmbiguousProofError, WrongAnswerError)}


class ThreadCrew:
    """A crew without processes, and its only place: an engine in threads of the test's own."""

    def __init__(
        self,
        engine: Engine | None,
        threads: int,
        clock: Clock | None = None,
        plan: WorkerPlan | None = None,
    ) -> None:
        self.plan = plan or cpu_worker("a test", threads)
        self.deaths = 0
        self.clock = clock or SystemClock()
        self.held: dict[int, Ticket] = {}
        self._threads: EngineThreads | None = None
        if engine is not None:
            self.begin(engine)

    def begin(self, engine: Engine) -> None:
        """Be ready."""
        loop = asyncio.get_running_loop()

        def tell(message: Done | Failed) -> None:
            loop.call_soon_threadsafe(self._end, life, message)

        life = self._threads = EngineThreads(engine, self.plan.threads, tell, self.clock)

    @property
    def places(self) -> "list[ThreadCrew]":
        return [self]

    @property
    def state(self) -> Literal["ready", "resting"]:
        return "resting" if self._threads is None else "ready"

    @property
    def why(self) -> str | None:
        return self.why_not()

    @property
    def tickets(self) -> list[Ticket]:
        return list(self.held.values())

    def attach(self, changed: Callable[[], None], lost: Lost) -> None:
        self.changed, self.lost = changed, lost

    def take(self, ticket: Ticket) -> None:
        assert self._threads is not None
        assert len(self.held) < self.plan.threads
        now = self.clock.monotonic()
        self.held[ticket.number] = ticket
        self._threads.start(Ask(ticket.number, ticket.kind, ticket.question, ticket.deadline - now))

    def cancel(self, ticket: Ticket) -> None:
        if self._threads is not None:
            self._threads.abandon(ticket.number)

    def give_up(self, why: str, *, useless: bool = False) -> None:
        self.lose()

    def lose(self) -> None:
        """Lose the worker; until `begin` nobody is ready."""
        tickets = self.tickets
        self.close()
        self._threads = None
        self.held.clear()
        self.deaths += 1
        for ticket in reversed(tickets):
            self.lost(ticket, WorkerLostError("The worker on a test was lost: it was told to be."), self.plan)

    def seconds_until_ready(self) -> float:
        return 0.0 if self.state == "ready" else 1.0

    def why_not(self) -> str | None:
        return "it was told to be" if self.deaths and self.state != "ready" else None

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()

    def _end(self, life: EngineThreads, message: Done | Failed) -> None:
        ticket = self.held.pop(message.number, None) if life is self._threads else None
        if ticket is None:
            return
        if isinstance(message, Done):
            ticket.succeed(Answer(message.xs, message.seconds, self.plan))
        else:
            ticket.fail(ERRORS.get(message.code, DeadlineError)(message.message))
        self.changed()


@dataclass
class Stage:
    """A running server and a connection to it."""

    server: RecomputeServer
    crew: ThreadCrew
    url: str
    port: int
    http: aiohttp.ClientSession

    async def post(self, path: str, body: str | bytes, **headers: str) -> tuple[int, dict[str, object]]:
        """Send a request and return status and parsed answer; ``_`` in a header's name stands for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(self.url + path, data=body, headers=named) as answer:
            assert answer.content_type in {"application/json", "application/problem+json"}
            return answer.status, await answer.json(content_type=None)

    def learn(self, seconds: float, level: int = 3) -> None:
        """Have the worker known for taking so long with a proof."""
        work = Work("proof", level)
        self.server._queue.rates.learn(work, seconds, self.crew.plan.factory)

    def start(self, path: str, body: str, **headers: str) -> asyncio.Task[tuple[int, dict[str, object]]]:
        """Send a request without waiting for its answer."""
        return asyncio.create_task(self.post(path, body, **headers))


@asynccontextmanager
async def stage(engine: Engine | None, **settings: object) -> AsyncIterator[Stage]:
    """Run a server on a free port for as long as the block lasts; without an engine it is still starting.

    Requests ask for computing, so that a test may ask the same twice.
    """
    given = RecomputeServerSettings.model_validate({"recompute_port": 0, "recompute_threads": 1, **settings})
    listener = bind("the recompute server", "127.0.0.1", 0, "GPUPOOL_RECOMPUTE")
    crew = ThreadCrew(engine, given.threads.used)
    async with (
        listening(given, "inst-test", listener, crew) as (server, port),
        aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(PATIENCE), headers={"Cache-Control": "no-cache"}
        ) as http,
    ):
        yield Stage(server, crew, f"http://127.0.0.1:{port}", port, http)
    crew.close()
