"""One control with a whole fleet on its hands, on a real PostgreSQL: is it quick, small, and soon itself again?

Starts everything itself, on free ports and in temporary folders: the database server, control, and one process with all
the agents (`fleet_parts/agents.py`). Limits of issue and design for 10,000 nodes on two cores: p99 of API calls < 50 ms
meanwhile, control < 400 MB, a change at a follower in < 100 ms, all agents in sync again 30 s after a restart.

Run: `.venv/bin/python benchmarks/fleet.py [--nodes 10000] [--seconds 60]`
"""

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from benchmarks.control import Caller, cpu_seconds, resident_mib  # noqa: E402
from benchmarks.fleet_parts.agents import REPORTS, key_of, node_id  # noqa: E402
from benchmarks.fleet_parts.filling import fill  # noqa: E402

from gpupool.core.ids import new_id  # noqa: E402
from gpupool.core.records import ProcessRecord  # noqa: E402
from postgres_server import migrated_database  # noqa: E402

API_P99_MS, CHANGE_MS, SYNC_SECONDS, MEBIBYTES = 50.0, 100.0, 30.0, 400e6 / 2**20
ASKED = {
    "healthz": "/healthz",
    "one page of nodes": "/v1/nodes?limit=100",
    "one node": f"/v1/nodes/{node_id(7)}",
    "endpoints": "/v1/endpoints?protocol=openai",
    "workloads": "/v1/workloads",
    "events": "/v1/events?limit=20",
}


class Control:
    """Control as a process, on one port for all its starts."""

    def __init__(self, folder: Path, variables: dict[str, str], port: int) -> None:
        self.home, self.port = folder / "home", port
        self._log = folder / "control.log"
        self._env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._env |= variables
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self.process is not None
        return self.process.pid

    @property
    def bearer(self) -> dict[str, str]:
        """The operator's header."""
        token = (self.home / "keys" / "operator.token").read_text().strip()
        return {"Authorization": f"Bearer {token}"}

    async def start(self) -> float:
        """Start it, and return the seconds until it listens."""
        begun = time.monotonic()
        words = ["control", "serve", "--port", str(self.port), "--home", str(self.home)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - nothing else is measured meanwhile
                [sys.executable, "-P", "-m", "gpupool", *words], env=self._env, stdout=log, stderr=log
            )
        while True:
            record = ProcessRecord.read(self.home / "run" / "control.json")
            if record is not None and record.process.pid == self.process.pid:
                return time.monotonic() - begun
            if self.process.poll() is not None:
                raise RuntimeError(self._log.read_text()[-4000:])
            await asyncio.sleep(0.01)

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Agents:
    """The process of all agents."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def stats(self) -> dict[str, Any]:
        """Return what they have seen since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"stats\n")
        seen: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return seen

    async def in_sync(self, wanted: int, patience: float) -> tuple[bool, list[float], dict[str, int]]:
        """Wait until all are; return whether they got there, the moments, and what went wrong on the way."""
        moments: list[float] = []
        counts = dict.fromkeys(("connects", "unopened", "refused", "late", "forgotten"), 0)
        end = time.monotonic() + patience
        while True:
            seen = await self.stats()
            moments += seen["syncs"]
            counts = {name: counts[name] + seen[name] for name in counts}
            if seen["synced"] >= wanted or time.monotonic() > end:
                return seen["synced"] >= wanted, moments, counts
            await asyncio.sleep(0.2)


@asynccontextmanager
async def agents(port: int, given: argparse.Namespace) -> AsyncIterator[Agents]:
    """Run the agents."""
    streams = min(given.streams, given.nodes)
    words = ["--port", port, "--nodes", given.nodes, "--streams", streams, "--period", given.period]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "benchmarks.fleet_parts.agents",
        *map(str, words),
        *(["--telemetry"] if given.telemetry else []),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
        limit=2**24,
    )
    try:
        yield Agents(process)
    finally:
        process.kill()
        await process.wait()


async def ask_around(control: Control, seconds: float) -> dict[str, list[float]]:
    """Ask for one thing after the other, fifty times a second, and return how long each took."""
    spans: dict[str, list[float]] = {name: [] for name in ASKED}
    end = time.monotonic() + seconds
    async with Caller(control.port) as caller:
        while time.monotonic() < end:
            for name, target in ASKED.items():
                begun = time.perf_counter()
                await caller.ask("GET", target, control.bearer)
                spans[name].append(time.perf_counter() - begun)
                await asyncio.sleep(0.02)
    return spans


async def heard_at(wait: Coroutine[Any, Any, bytes]) -> float:
    """Return the moment at which an answer comes."""
    await wait
    return time.perf_counter()


async def follow(control: Control, tries: int) -> dict[str, list[float]]:
    """Change something again and again, and return when followers of events and endpoints heard of it (seconds)."""
    spans: dict[str, list[float]] = {"events": [], "endpoints": []}
    async with Caller(control.port) as changing, Caller(control.port) as events, Caller(control.port) as feed:
        for turn in range(tries):
            seq = json.loads(await events.ask("GET", "/v1/endpoints?protocol=openai", control.bearer))[
                "revision"
            ]
            waits = {
                "events": events.ask("GET", f"/v1/events?after={seq}&wait=30", control.bearer),
                "endpoints": feed.ask(
                    "GET", f"/v1/endpoints?protocol=recompute&after={seq}&wait=30", control.bearer
                ),
            }
            tasks = {name: asyncio.create_task(heard_at(wait)) for name, wait in waits.items()}
            await asyncio.sleep(0.1)
            begun = time.perf_counter()
            word = "unlock" if turn % 2 else "lock"
            await changing.ask("POST", f"/v1/nodes/{node_id(7)}/{word}", control.bearer)
            for name, task in tasks.items():
                spans[name].append(await task - begun)
    return spans


async def floor(seconds: float) -> float:
    """Return the microseconds of processor time that one signed report costs the barest of servers."""
    process = subprocess.Popen(  # noqa: ASYNC220 - as above
        [sys.executable, "-P", "-m", "benchmarks.fleet_parts.floor"],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        key, number, end = key_of(0), 0, time.monotonic() + seconds
        async with Caller(port) as caller:
            used = cpu_seconds(process.pid)
            while time.monotonic() < end:
                body = json.dumps({"report_id": new_id("rep"), "sent_at": "2026-01-01T00:00:00Z"}).encode()
                await caller.ask(
                    "POST", REPORTS, key.headers("n", "POST", REPORTS, body, int(time.time())), body
                )
                number += 1
            return (cpu_seconds(process.pid) - used) / number * 1e6
    finally:
        process.kill()
        process.wait()


def centiles(spans: list[float]) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds."""
    cuts = statistics.quantiles(spans, n=100)
    return cuts[49] * 1e3, cuts[98] * 1e3


def busiest(moments: list[float]) -> int:
    """Return the most that happened within one second."""
    ordered, first, most = sorted(moments), 0, 0
    for last, moment in enumerate(ordered):
        while moment - ordered[first] > 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


class Report:
    """Lines for people, and whether every limit holds."""

    def __init__(self) -> None:
        self.well = True

    def say(self, text: str, holds: bool | None = None) -> None:
        """Print a line; ``holds``: whether a limit does."""
        self.well = self.well and holds is not False
        print(f"{text}{'' if holds is None else '   ok' if holds else '   MISSED'}", flush=True)


def load_average() -> str:
    """Return how busy the machine has been."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


async def measure(given: argparse.Namespace, folder: Path, report: Report) -> None:
    """Run all parts."""
    where = migrated_database()
    begun = time.monotonic()
    await fill(where, given.nodes)
    report.say(
        f"{given.nodes} nodes in the database after {time.monotonic() - begun:.1f} s; load {load_average()}"
    )
    least = await floor(3.0)
    report.say(f"floor: {least:.0f} us of processor time for a signed report")
    variables = {
        "GPUPOOL_DATABASE_URL": where.dsn,
        "GPUPOOL_CONTROL_SILENCE_SECONDS": str(3 * given.period),
    }
    control = Control(folder, variables, given.port)
    try:
        report.say(
            f"control listens after {await control.start():.2f} s; {resident_mib(control.pid):.0f} MiB"
        )
        async with agents(control.port, given) as fleet:
            await settle(given, control, fleet, report)
            await under_load(given, control, fleet, report)
            await restart(given, control, fleet, report)
    finally:
        control.kill()


async def settle(given: argparse.Namespace, control: Control, fleet: Agents, report: Report) -> None:
    """Wait for the first connects."""
    begun, used = time.monotonic(), cpu_seconds(control.pid)
    all_there, moments, counts = await fleet.in_sync(given.nodes, 90)
    if not all_there:
        raise RuntimeError(f"the agents do not get in sync: {len(moments)} {counts}")
    cost = (cpu_seconds(control.pid) - used) / given.nodes * 1e3
    report.say(
        f"all connected {time.monotonic() - begun:.1f} s after their start; {cost:.2f} ms CPU each; {counts}"
    )


async def under_load(given: argparse.Namespace, control: Control, fleet: Agents, report: Report) -> None:
    """Measure while they beat."""
    await asyncio.sleep(given.warm)
    await fleet.stats()
    used, begun = cpu_seconds(control.pid), time.monotonic()
    spans = await ask_around(control, given.seconds)
    seen, took = await fleet.stats(), time.monotonic() - begun
    share = (cpu_seconds(control.pid) - used) / took
    report.say(
        f"{seen['beats'] / took:.0f} beats/s from {seen['synced']} agents, {seen['streams']} of them listen;"
        f" p50 {seen['beat_ms'][0]} p99 {seen['beat_ms'][1]} ms; control uses {share:.0%} of a core;"
        f" refused {seen['refused']}, late {seen['late']}; load {load_average()}"
    )
    for name, some in spans.items():
        p50, p99 = centiles(some)
        report.say(f"  {name:<20} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms")
    p50, p99 = centiles([span for some in spans.values() for span in some])
    report.say(f"API meanwhile          p50 {p50:6.2f} ms   p99 {p99:6.2f} ms", p99 < API_P99_MS)
    for name, some in (await follow(control, 30)).items():
        p50, p99 = centiles(some)
        report.say(f"a change at {name:<10} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms", p99 < CHANGE_MS)
    memory = resident_mib(control.pid)
    report.say(f"memory {memory:.0f} MiB of {MEBIBYTES:.0f}", memory < MEBIBYTES)


async def restart(given: argparse.Namespace, control: Control, fleet: Agents, report: Report) -> None:
    """Kill control, start it again, and wait for all agents to have told everything."""
    await fleet.stats()
    control.kill()
    await asyncio.sleep(given.down)
    ready = await control.start()
    back, used = time.monotonic(), cpu_seconds(control.pid)
    spans = asyncio.create_task(ask_around(control, SYNC_SECONDS))
    all_there, moments, counts = await fleet.in_sync(given.nodes, 180)
    took = max(moments, default=back) - back
    cost = (cpu_seconds(control.pid) - used) / given.nodes * 1e3
    report.say(
        f"restarted after {given.down:g} s down, listens after {ready:.2f} s; all in sync again {took:.1f} s later,"
        f" at most {busiest(moments)} in one second; {cost:.2f} ms CPU each; {counts}; load {load_average()}",
        all_there and took < SYNC_SECONDS,
    )
    p50, p99 = centiles([span for some in (await spans).values() for span in some])
    report.say(f"API meanwhile          p50 {p50:6.2f} ms   p99 {p99:6.2f} ms")
    report.say(
        f"memory {resident_mib(control.pid):.0f} MiB of {MEBIBYTES:.0f}",
        resident_mib(control.pid) < MEBIBYTES,
    )


def free_port() -> int:
    """Return a port that is free, and not of those that the agents' own ends take."""
    while True:
        port = random.randrange(20_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def main() -> int:
    """Measure and compare with the limits; 1 when one is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=9_500, help="Agents that listen for commands, too.")
    parser.add_argument("--period", type=float, default=30.0, help="Seconds between two beats of an agent.")
    parser.add_argument("--seconds", type=float, default=60.0, help="How long the load is measured.")
    parser.add_argument("--warm", type=float, default=5.0, help="Seconds of load before.")
    parser.add_argument("--down", type=float, default=3.0, help="Seconds that control stays down.")
    parser.add_argument("--port", type=int, default=0, help="Port of control; 0: a free one.")
    parser.add_argument("--no-telemetry", dest="telemetry", action="store_false")
    given = parser.parse_args()
    given.port = given.port or free_port()
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(given, Path(folder), report))
    print("within the limits" if report.well else "a limit is broken")
    return 0 if report.well else 1


if __name__ == "__main__":
    sys.exit(main())
