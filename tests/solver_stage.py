"""A solver front in the test's own loop, workers that do what the test says, and farmers that speak Chia's protocol."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import aiohttp
from aiohttp import web

from gpupool.contracts.recompute import QueueView, SolutionRequest, SolverView, StrengthRate
from gpupool.core.listening import bind
from gpupool.recompute.solver_front import identity
from gpupool.recompute.solver_front.front import Front
from gpupool.recompute.solver_front.identity import Identity
from gpupool.recompute.solver_front.main import standing
from gpupool.recompute.solver_front.settings import FrontSettings
from gpupool.recompute.solver_front.wire import Handshake, Kind, Message, NodeType, Solution, Solve
from gpupool.solvers.questions import SolveQuestion
from polling import eventually

PATIENCE = 30.0
RELEASE = "0.48.0"


@cache
def made_identity(number: int) -> Identity:
    """An identity made once for a whole test run: keys take time."""
    return Identity.load_or_make(Path(mkdtemp(prefix=f"gpupool-identity-{number}-")))


def question(number: int, strength: int = 2) -> SolveQuestion:
    """A question that only a stand-in can answer."""
    return SolveQuestion(number.to_bytes(128, "big"), b"\7" * 32, 28, strength)


def proof_of(partial_proof: bytes) -> bytes:
    """What stand-ins answer."""
    return (partial_proof * 4)[: 16 * 28]


Behaviour = Callable[[SolutionRequest], Awaitable[bytes]]


async def honest(request: SolutionRequest) -> bytes:
    return proof_of(bytes.fromhex(request.partial_proof))


@dataclass(eq=False)
class WorkerDouble:
    """A recompute server as far as the front sees one."""

    behaviour: Behaviour = honest
    release: str = RELEASE
    seconds: float = 1.0
    token: str | None = None
    asked: list[SolutionRequest] = field(default_factory=list)
    left: int = 0
    """Questions whose asker did not wait."""
    port: int = 0
    _runner: web.AppRunner | None = None

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/server", self._view), web.post("/v1/solutions", self._solve)])
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        listener = bind("a worker", "127.0.0.1", self.port, "TEST")
        self.port = listener.getsockname()[1]
        await web.SockSite(self._runner, listener).start()

    async def stop(self) -> None:
        """End as a process does that is killed."""
        runner, self._runner = self._runner, None
        if runner is None or runner.server is None:
            return
        for site in list(runner.sites):
            await site.stop()
        for connection in runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def _view(self, request: web.Request) -> web.Response:
        solver = SolverView(
            chia_rs=self.release,
            cores=2,
            workers=1,
            state="ready",
            queue=QueueView(running=0, waiting=0, room=64),
            rates=[
                StrengthRate(strength=strength, seconds=self.seconds, measured=True)
                for strength in range(2, 18)
            ],
        )
        return web.json_response({"state": "ready", "solver": solver.model_dump()})

    async def _solve(self, request: web.Request) -> web.Response:
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"code": "unauthorized", "detail": "a token is needed"}, status=401)
        asked = SolutionRequest.model_validate_json(await request.read())
        self.asked.append(asked)
        try:
            return web.Response(body=await self.behaviour(asked))
        except asyncio.CancelledError:
            self.left += 1
            raise


class FarmerDouble:
    """Connects as a farmer does."""

    def __init__(
        self, port: int, own: Identity | None = None, http: aiohttp.ClientSession | None = None
    ) -> None:
        self.own = own or made_identity(1)
        self._port = port
        self._http = http
        self.socket: aiohttp.ClientWebSocketResponse | None = None

    async def connect(self, context: ssl.SSLContext | None = None) -> "FarmerDouble":
        assert self._http is not None
        self.socket = await self._http.ws_connect(
            f"wss://127.0.0.1:{self._port}/ws", ssl=context or client_context(self.own), heartbeat=60
        )
        return self

    async def greet(self, **changes: Any) -> Handshake:
        """Shake hands as Chia 2.7.5 does; raises ConnectionError where there is no answer."""
        fields = {"network": "mainnet", "protocol": "0.0.38", "software": "2.7.5", "port": 8447}
        ours = Handshake(**{**fields, "node_type": NodeType.FARMER, **changes})
        await self.send(Message(Kind.HANDSHAKE, None, ours.encode()))
        message = await self.receive()
        assert message.kind == Kind.HANDSHAKE
        return Handshake.decode(message.body)

    async def ask(self, asked: SolveQuestion) -> None:
        solve = Solve(asked.partial_proof, asked.plot_id, asked.strength, asked.k)
        await self.send(Message(Kind.SOLVE, None, solve.encode()))

    async def answer(self) -> Solution:
        message = await self.receive()
        assert (message.kind, message.number) == (Kind.SOLUTION, None)
        return Solution.decode(message.body)

    async def solve(self, asked: SolveQuestion) -> bytes:
        await self.ask(asked)
        solution = await self.answer()
        assert solution.partial_proof == asked.partial_proof
        return solution.proof

    async def send(self, message: Message | bytes) -> None:
        assert self.socket is not None
        await self.socket.send_bytes(message if isinstance(message, bytes) else message.encode())

    async def receive(self) -> Message:
        assert self.socket is not None
        received = await self.socket.receive(timeout=PATIENCE)
        if received.type is not aiohttp.WSMsgType.BINARY:
            raise ConnectionError(f"closed with {self.socket.close_code}")
        return Message.decode(received.data)


def client_context(own: Identity | None) -> ssl.SSLContext:
    """What a farmer connects with: it trusts Chia's authority and does not look at names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=identity._DATA.joinpath("chia_ca.crt").read_text())
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


@dataclass
class Stage:
    """A front that stands, with its workers."""

    front: Front
    workers: list[WorkerDouble]
    pages: str
    http: aiohttp.ClientSession

    farmers: list[FarmerDouble] = field(default_factory=list)

    def farmer(self, own: Identity | None = None) -> FarmerDouble:
        self.farmers.append(FarmerDouble(self.front.port, own, self.http))
        return self.farmers[-1]

    async def end(self) -> None:
        for farmer in self.farmers:
            if farmer.socket is not None:
                await farmer.socket.close()

    async def connected(self, own: Identity | None = None) -> FarmerDouble:
        """A farmer that has been greeted."""
        farmer = await self.farmer(own).connect()
        await farmer.greet()
        return farmer

    async def able(self, count: int) -> None:
        await eventually(lambda: len(self.front.workers.able()) == count, what=f"{count} usable workers")


@asynccontextmanager
async def stage(*workers: WorkerDouble, **settings: Any) -> AsyncIterator[Stage]:
    """Run a front before ``workers`` on free ports for as long as the block lasts."""
    async with AsyncExitStack() as stack:
        for worker in workers:
            await worker.start()
            stack.push_async_callback(worker.stop)
        given = FrontSettings(
            **{
                "nodes": tuple(worker.name for worker in workers) or ("127.0.0.1:1",),
                "drain_seconds": 1.0,
                **settings,
            }
        )
        listener = bind("the solver front", "127.0.0.1", 0, "TEST")
        pages = bind("its pages", "127.0.0.1", 0, "TEST")
        address = f"http://127.0.0.1:{pages.getsockname()[1]}"
        http = await stack.enter_async_context(aiohttp.ClientSession())
        front, _ = await stack.enter_async_context(standing(given, made_identity(0), listener, pages))
        standing_now = Stage(front, list(workers), address, http)
        stack.push_async_callback(standing_now.end)
        await standing_now.able(sum(worker.release == given.release for worker in workers))
        yield standing_now
