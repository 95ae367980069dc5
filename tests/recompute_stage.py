"""A recompute server in the test's own loop, with an engine that does what the test says."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from gpupool.core.listening import bind
from gpupool.recompute.demo import known_proof
from gpupool.recompute.server.app import RecomputeServer
from gpupool.recompute.server.engine import Checkpoint, Engine
from gpupool.recompute.server.main import listening
from gpupool.recompute.server.questions import Question
from gpupool.recompute.server.settings import RecomputeServerSettings

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


@dataclass
class Stage:
    """A running server and a connection to it."""

    server: RecomputeServer
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
    async with (
        listening(given, "inst-test", listener) as (server, port),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as http,
    ):
        if engine is not None:
            server.begin(engine)
        yield Stage(server, f"http://127.0.0.1:{port}", port, http)
