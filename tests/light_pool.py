"""A pool of two real processes, control and one agent, that tests kill, freeze and starve.

Lighter than `up_run`: no gateway, no demo, no supervisor. The test itself starts again what has died (`tend`), and
`check_sound` holds the whole pool - records, claims, processes, files, ports - against the rules.
"""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

import httpx

from control_stage import a_client
from gpupool.core.failpoints import VARIABLE
from gpupool.core.home import Home
from gpupool.core.processes import ProcessIdentity
from gpupool.core.records import ProcessRecord
from gpupool.runtimes.process.marks import find_marked
from up_run import free_ports

HELLO = ("python", "-m", "http.server", "{port}", "--bind", "{host}")
QUICK = {
    "GPUPOOL_HEARTBEAT_SECONDS": "0.5",
    "GPUPOOL_RETRY_SECONDS": "1",
    "GPUPOOL_CONTROL_LOCK_SECONDS": "1",
}
PATIENCE = 60.0


class Member:
    """One process of the pool, started as often as need be."""

    def __init__(self, role: str, arguments: list[str], env: dict[str, str], log: Path) -> None:
        self.role, self.arguments, self.env, self.log = role, arguments, dict(env), log
        self.prefix: tuple[str, ...] = ()
        """Put in front of the command, such as ``unshare``."""
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Start it, its output appended to its log."""
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-P", "-m", "gpupool", *self.arguments, *more],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def runs(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def ended(self) -> int:
        """Return its exit code once it has ended."""
        assert self.process is not None
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), PATIENCE)


class LightPool:
    """Control and an agent on one state folder. Use as an async context manager."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.home = Home(folder / "home")
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.failpoint = folder / "failpoint"
        env = {
            "GPUPOOL_HOME": str(self.home.root),
            "GPUPOOL_CONTROL_PORT": str(self.port),
            "GPUPOOL_CONTROL_URL": self.url,
            "GPUPOOL_NODE_NAME": "tested",
            "GPUPOOL_MACHINE_IDENTITY": "tested",
            VARIABLE: str(self.failpoint),
            **QUICK,
            **variables,
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.control = Member("control", ["control", "serve"], env, folder / "control.log")
        self.agent = Member("agent", ["agent", "run"], env, folder / "agent.log")
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        self._client = a_client(self.url, {})
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in (self.agent, self.control):
            member.kill()
        for process in self.processes():
            process.signal(signal.SIGKILL)
        if self._client is not None:
            await self._client.aclose()

    def move_to(self, host: str) -> None:
        """Ask control at another address of this machine, where it is told to listen."""
        assert self._client is not None
        self.url = f"http://{host}:{self.port}"
        self._client.base_url = httpx.URL(self.url)
        for member in (self.control, self.agent):
            member.env |= {"GPUPOOL_CONTROL_URL": self.url}

    async def start(self) -> None:
        """Start both and return when the node is ready."""
        self.agent.process = None
        self.control.start()
        await self.until(lambda: self.try_once("GET", "/readyz"), "control")
        self.agent.start()
        await self.until(self.node_is_ready, "a ready node")

    def tend(self) -> None:
        """Start again what has died."""
        for member in (self.control, self.agent):
            if member.process is not None and not member.runs:
                member.start()

    # What one asks control.

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        """Return control's answer; None where there is none to be had just now, and what has died is started again."""
        self.tend()
        return await self.try_once(method, path, **options)

    async def try_once(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        """Return control's answer; None where it cannot be reached."""
        assert self._client is not None
        with suppress(FileNotFoundError):
            self._client.headers["Authorization"] = f"Bearer {self.token}"
        try:
            return await self._client.request(method, path, **options)
        except httpx.TransportError:
            return None

    @property
    def token(self) -> str:
        """The operator token."""
        return self.home.operator_token.read_text().strip()

    async def get(self, path: str) -> Any:
        """Return the JSON of an answer that must come."""
        reply: httpx.Response = await self.until(lambda: self.ask("GET", path), path)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def until(self, look: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Return the first true value of ``look``, starting again whatever dies meanwhile."""
        deadline = time.monotonic() + seconds
        while True:
            self.tend()
            seen = look()
            value = await seen if isinstance(seen, Awaitable) else seen
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not happen within {seconds:g} s\n{self.logs()}")
            await asyncio.sleep(0.1)

    async def node_is_ready(self) -> bool:
        """Tell whether control has the node as ready and connected."""
        reply = await self.try_once("GET", "/v1/nodes")
        nodes = reply.json() if reply is not None and reply.status_code == 200 else []
        return any(node["state"] == "ready" and node["connected"] for node in nodes)

    async def deploy(self, name: str = "hello", **fields: Any) -> None:
        """Want a chute, a small file server unless the fields say otherwise, until control has acknowledged it."""
        spec = {"name": name, "command": HELLO, "health": "/", "memory_mb": 64, "grace": 2}

        async def acknowledged() -> bool:
            reply = await self.ask("POST", "/v1/workloads", json={"spec": {**spec, **fields}})
            assert reply is None or reply.status_code in {200, 201}, reply.text
            return reply is not None

        await self.until(acknowledged, f"{name}'s acknowledgement")

    async def workload(self, name: str = "hello") -> dict[str, Any]:
        """Return a workload as control shows it."""
        found: dict[str, Any] = await self.get(f"/v1/workloads/{name}")
        return found

    async def active(self, name: str = "hello") -> dict[str, Any]:
        """Return the workload once it is as wanted and in the feed, with a port that answers."""

        async def look() -> dict[str, Any] | None:
            seen = await self.workload(name)
            feed = await self.get("/v1/endpoints")
            live = [item for item in seen["placements"] if item["state"] not in {"ended", "failed"}]
            listed = [item["placement"] for item in feed["endpoints"] if item["workload"] == seen["id"]]
            as_wanted = seen["active"] == seen["live"] == seen["wanted"] == len(listed)
            whole = feed["complete"] and sorted(listed) == sorted(item["id"] for item in live)
            return seen if as_wanted and whole else None

        found: dict[str, Any] = await self.until(look, f"an active {name}")
        return found

    async def gone(self) -> None:
        """Return once nothing is placed and nothing runs."""

        async def look() -> bool:
            return not await self.get("/v1/placements?live=true") and not self.processes()

        await self.until(look, "the end of everything that was placed")

    async def delete(self, name: str = "hello") -> None:
        """Want a chute no more, until control has acknowledged that."""

        async def acknowledged() -> bool:
            reply = await self.ask("DELETE", f"/v1/workloads/{name}")
            assert reply is None or reply.status_code in {200, 204, 404}, reply.text
            return reply is not None

        await self.until(acknowledged, f"the end of {name}, acknowledged")

    # What must hold.

    def processes(self) -> list[ProcessIdentity]:
        """Return every process that the agent's workloads consist of, found by their marks."""
        return [found.process for found in find_marked(self.home.agent / "runs")]

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the run records by placement."""
        paths = (self.home.agent / "runs").glob("*/record.json")
        return {path.parent.name: json.loads(path.read_text()) for path in paths}

    async def check_sound(self) -> None:
        """Fail unless, once at rest, every rule of the pool holds."""
        try:
            await self.until(self._at_rest, "rest")
        except AssertionError as error:
            error.add_note(f"seen: {await self._troubles()}")
            raise

    async def _at_rest(self) -> bool:
        return not await self._troubles()

    async def _troubles(self) -> list[str]:
        live: list[dict[str, Any]] = await self.get("/v1/placements?live=true&limit=1000")
        ids = {item["id"] for item in live}
        troubles = claim_troubles(await self.get("/v1/devices"), ids)
        troubles += [f"{item['id']} holds nothing" for item in live if not item["claims"]]
        records = self.records()
        if set(records) != ids:
            troubles.append(f"run records {sorted(records)}, live {sorted(ids)}")
        leaders = sorted(record["process"]["pid"] for record in records.values() if record["process"])
        running = sorted(process.pid for process in self.processes())
        if running != leaders:
            troubles.append(f"processes {running}, recorded {leaders}")
        if self.journaled() != ids:
            troubles.append(f"the journal wants {sorted(self.journaled())}, live {sorted(ids)}")
        return troubles + self._disk_troubles() + await self._event_troubles()

    def journaled(self) -> set[str]:
        """Return the placements that the agent's journal wants."""
        return set(json.loads((self.home.agent / "journal.json").read_text())["wanted"])

    def queued_commands(self) -> int:
        """Return how many commands no node has acknowledged."""
        with closing(sqlite3.connect(self.home.database, timeout=10)) as database:
            return int(database.execute("SELECT count(*) FROM commands").fetchone()[0])

    def _disk_troubles(self) -> list[str]:
        queued = self.queued_commands()
        troubles = [f"{queued} commands not acknowledged"] if queued else []
        leftovers = [path for path in self.home.root.rglob(".*.*") if path.is_file()]
        return troubles + [f"unfinished file {path}" for path in leftovers]

    async def _event_troubles(self) -> list[str]:
        after, numbers = 0, []
        while page := await self.get(f"/v1/events?after={after}&limit=1000"):
            numbers += [event["seq"] for event in page]
            after = numbers[-1]
        return [] if self.in_order(numbers) else [f"the events are not in order, or have gaps: {numbers}"]

    def in_order(self, numbers: list[int]) -> bool:
        """Tell whether the events' numbers are as the database gives them: one after the other, without a gap."""
        return numbers == list(range(1, len(numbers) + 1))

    def record(self, role: str) -> ProcessRecord | None:
        """Return a process record."""
        return ProcessRecord.read(self.home.run / f"{role}.json")

    def logs(self) -> str:
        """Return the end of both logs, for a failure's report."""
        logs = [member.log for member in (self.control, self.agent) if member.log.exists()]
        return "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in logs)

    def cli(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command of this pool to its end."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "gpupool", *arguments],
            env={**os.environ, **self.control.env},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )


def claim_troubles(devices: list[dict[str, Any]], live: set[str]) -> list[str]:
    """Return what is wrong with the claims: two exclusive ones, too much memory, or held by nothing that lives."""
    troubles = []
    for device in devices:
        claims = device["claims"]
        exclusive = [claim for claim in claims if claim["mode"] == "exclusive"]
        if len(claims) > 1 and exclusive:
            troubles.append(f"{device['id']} is held exclusively and by others: {claims}")
        if sum(claim["mib"] for claim in claims) > device["memory_mib"]:
            troubles.append(f"{device['id']} has given more than it has: {claims}")
        troubles += [
            f"{claim} of nothing that lives" for claim in claims if claim["placement_id"] not in live
        ]
    return troubles


def endpoints(view: dict[str, Any]) -> list[str]:
    """Return the addresses of a workload's live placements."""
    return [item["address"] for item in view["placements"] if item["state"] == "active"]


def port_of(address: str) -> int:
    """Return the port of ``host:port``."""
    return int(address.rpartition(":")[2])
