"""A whole control in the test's own event loop, reached over real HTTP; and an agent that says what a test tells it.

The control has the real store, border, routes and reconciler. Only its process (signals, migration) is left out; the
tests of the process start one.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from fleet_samples import new_database
from gpupool.contracts.agent_link import Command, DeviceReport, PlacementReport, Report, ReportReply
from gpupool.control.alerts.desk import AlertDesk
from gpupool.control.app import build_app
from gpupool.control.http.guard import Tokens
from gpupool.control.joining import forget_sessions
from gpupool.control.pool import Pool
from gpupool.control.reconciling import Reconciler, supervise
from gpupool.control.serving import ControlServer
from gpupool.core.clock import Clock, SystemClock
from gpupool.core.home import Home
from gpupool.core.ids import new_id
from gpupool.core.keys import SigningKey
from gpupool.core.listening import bind
from gpupool.fleet.devices import DeviceKind
from gpupool.fleet.placements import PlacementState
from gpupool.store.open import open_store
from gpupool.store.postgres_url import PostgresUrl

CPU_MIB = 8192


class Stage:
    """One run of control and a client with the operator token."""

    def __init__(
        self,
        pool: Pool,
        server: ControlServer,
        url: str,
        tokens: Tokens,
        client: httpx.AsyncClient,
        desk: AlertDesk,
    ) -> None:
        self.pool, self.server, self.url, self.tokens, self.client = pool, server, url, tokens, client
        self.desk = desk
        """Shows alarms, and looks at nothing by itself."""

    async def get(self, path: str, **query: Any) -> Any:
        """Return the JSON answer of a GET that must succeed."""
        reply = await self.client.get(path, params=query)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def until(self, path: str, ready: Callable[[Any], object]) -> Any:
        """Return the first answer of ``path`` that is ``ready``, looking again at every change."""
        async with asyncio.timeout(20):
            while True:
                seen = self.pool.changes.count
                found = await self.get(path)
                if ready(found):
                    return found
                await self.pool.changes.after(seen, 20)

    async def why(self, name: str = "demo") -> str:
        """Return why a workload is not placed as wanted, once control knows."""
        shown = await self.until(f"/v1/workloads/{name}", lambda found: found["why"])
        return str(shown["why"])

    async def deploy(self, name: str = "demo", **fields: Any) -> Any:
        """Deploy a chute and return the reply."""
        spec = {"name": name, "command": ["serve", "{port}"], "openai": True, "models": [f"{name}-model"]}
        reply = await self.client.post("/v1/workloads", json={"spec": {**spec, **fields}})
        assert reply.status_code in {200, 201}, reply.text
        return reply.json()

    def anonymous(self, token: str | None = None) -> httpx.AsyncClient:
        """Return a client without the operator token."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return a_client(self.url, headers)


def a_client(url: str, headers: dict[str, str]) -> httpx.AsyncClient:
    """Return a client that loads no certificates: everything here is plain HTTP."""
    unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=30, verify=unused)


@asynccontextmanager
async def stage(
    folder: Path, clock: Clock | None = None, where: PostgresUrl | None = None
) -> AsyncIterator[Stage]:
    """Run control on the state in ``folder`` (made at first use), or at ``where``, until the block ends."""
    home = Home(folder / "home").prepare()
    if where is None and not home.database.exists():
        new_database(home.data)
    store = await open_store(where or home.database)
    pool = Pool(store, clock or SystemClock())
    await forget_sessions(pool)
    tokens = Tokens.load_or_make(home)
    listening = asyncio.Event()
    listener = bind("control", "127.0.0.1", 0, "GPUPOOL_CONTROL")
    desk = AlertDesk(pool)
    server = ControlServer(build_app(pool, tokens, desk=desk), on_listening=listening.set)
    serving = asyncio.create_task(server.serve([listener]))
    reconciling = asyncio.create_task(supervise(Reconciler(pool)))
    await listening.wait()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    headers = {"Authorization": f"Bearer {tokens.operator}"}
    try:
        async with a_client(url, headers) as client:
            yield Stage(pool, server, url, tokens, client, desk)
    finally:
        server.should_exit = True
        pool.close()
        await serving
        await reconciling
        await store.close()
        listener.close()


class ScriptedAgent:
    """Says what it is told to say, signed."""

    def __init__(
        self, on: Stage, name: str = "node-a", key: SigningKey | None = None, folder: Path | None = None
    ):
        self.on, self.name = on, name
        self.key = key or SigningKey.load_or_make((folder or Path()) / f"{name}.key")
        self.node_id = ""
        self.session = new_id("rep")
        self.commands: list[Command] = []
        self.placements: dict[str, PlacementReport] = {}

    async def join(self) -> httpx.Response:
        """Join under this name and key."""
        body = {"name": self.name, "public_key": self.key.public_text, "address": "127.0.0.1"}
        async with self.on.anonymous(self.on.tokens.join) as client:
            reply = await client.post("/v1/agent/join", json=body)
        if reply.status_code == 200:
            self.node_id = reply.json()["node_id"]
        return reply

    async def send(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        skew: int = 0,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send a signed request; ``headers`` replaces the signature, ``skew`` shifts its time."""
        signed = headers or self.key.headers(self.node_id, method, target, body, int(time.time()) + skew)
        async with self.on.anonymous() as client:
            return await client.request(method, target, content=body, headers=signed)

    async def report(self, **fields: Any) -> ReportReply:
        """Send a report that must be taken."""
        values = {"report_id": new_id("rep"), "sent_at": "2026-01-01T00:00:00Z", "session": self.session}
        body = Report.model_validate({**values, **fields}).model_dump_json().encode()
        reply = await self.send("POST", "/v1/agent/reports", body)
        assert reply.status_code == 200, reply.text
        return ReportReply.model_validate_json(reply.content)

    async def inventory(self, *devices: DeviceReport) -> ReportReply:
        """Send everything there is: the devices (one CPU unless given) and the placements said so far."""
        shown = devices or (cpu_of(self.name),)
        return await self.report(complete=True, devices=shown, placements=list(self.placements.values()))

    async def say(self, placement_id: str, state: PlacementState, **facts: Any) -> ReportReply:
        """Report one placement."""
        seen = PlacementReport.model_validate({"placement_id": placement_id, "state": state, **facts})
        self.placements[placement_id] = seen
        return await self.report(placements=[seen])

    @asynccontextmanager
    async def stream(self, after: int = 0) -> AsyncIterator[AsyncIterator[Command]]:
        """Open the command stream."""
        target = f"/v1/agent/commands?after={after}"
        headers = self.key.headers(self.node_id, "GET", target, b"", int(time.time()))
        async with (
            self.on.anonymous() as client,
            client.stream("GET", target, headers=headers, timeout=httpx.Timeout(30)) as reply,
        ):
            assert reply.status_code == 200
            yield _commands(reply)

    async def next_command(self, kind: str, after: int = 0) -> Command:
        """Return the first command of a kind after a sequence number, waiting for it."""
        async with asyncio.timeout(20), self.stream(after) as commands:
            async for command in commands:
                if command.kind == kind:
                    return command
        raise AssertionError("the stream ended")


async def _commands(reply: httpx.Response) -> AsyncIterator[Command]:
    async for line in reply.aiter_lines():
        if line.strip():
            yield Command.model_validate(json.loads(line))


def cpu_of(name: str, memory_mib: int = CPU_MIB) -> DeviceReport:
    """Return the report of a node's cpu device."""
    return DeviceReport(id=f"cpu-{name}", kind=DeviceKind.CPU, name="EPYC", index=0, memory_mib=memory_mib)


def gpu_of(name: str, index: int = 0, **facts: Any) -> DeviceReport:
    """Return the report of an accepted L4."""
    values = {"id": f"GPU-{name}-{index}", "kind": DeviceKind.GPU, "name": "NVIDIA L4", "index": index}
    values |= {"memory_mib": 23034, "short_ref": "l4", "hourly_usd": 0.3}
    return DeviceReport.model_validate({**values, **facts})
