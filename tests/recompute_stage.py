"""A recompute server in the test's own loop, with an engine that does what the test says."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from gpupool.contracts.recompute import RecomputeDevice
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
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.server.staffing import cpu_worker
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
    """A crew without processes: an engine in threads of the test's own."""

    def __init__(self, engine: Engine | None, threads: int, clock: Clock | None = None) -> None:
        self.plan, self.slots, self.restarts = cpu_worker("a test", threads), threads, 0
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

        life = self._threads = EngineThreads(engine, self.slots, tell, self.clock)

    @property
    def ready(self) -> bool:
        return self._threads is not None

    @property
    def tickets(self) -> list[Ticket]:
        return list(self.held.values())

    def attach(self, changed: Callable[[], None], lost: Callable[[Ticket, WorkerLostError], None]) -> None:
        self.changed, self.lost = changed, lost

    def take(self, ticket: Ticket) -> bool:
        if self._threads is None or len(self.held) >= self.slots:
            return False
        now = self.clock.monotonic()
        self.held[ticket.number], ticket.began = ticket, now
        self._threads.start(Ask(ticket.number, ticket.kind, ticket.question, ticket.deadline - now))
        return True

    def cancel(self, ticket: Ticket) -> None:
        if self._threads is not None:
            self._threads.abandon(ticket.number)

    def lose(self) -> None:
        """Lose the worker; until `begin` nobody is ready."""
        tickets = self.tickets
        self.close()
        self._threads = None
        self.held.clear()
        self.restarts += 1
        for ticket in reversed(tickets):
            self.lost(ticket, WorkerLostError("The worker on a test was lost: it was told to be."))

    def seconds_until_ready(self) -> float:
        return 0.0 if self.ready else 1.0

    def why_not(self) -> str | None:
        return "it was told to be" if self.restarts and not self.ready else None

    def devices(self) -> list[RecomputeDevice]:
        plan = self.plan
        return [RecomputeDevice(kind="cpu", name=plan.name, engine=plan.engine, workers=plan.threads)]

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

    def start(self, path: str, body: str, **headers: str) -> asyncio.Task[tuple[int, dict[str, object]]]:
        """Send a request without waiting for its answer."""
        return asyncio.create_task(self.post(path, body, **headers))


@asynccontextmanager
async def stage(engine: Engine | None, **settings: object) -> AsyncIterator[Stage]:
    """Run a server on a free port for as long as the block lasts; without an engine it is still starting."""
    given = RecomputeServerSettings.model_validate({"recompute_port": 0, "recompute_threads": 1, **settings})
    listener = bind("the recompute server", "127.0.0.1", 0, "GPUPOOL_RECOMPUTE")
    crew = ThreadCrew(engine, given.threads.used)
    async with (
        listening(given, "inst-test", listener, crew) as (server, port),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as http,
    ):
        yield Stage(server, crew, f"http://127.0.0.1:{port}", port, http)
    crew.close()
