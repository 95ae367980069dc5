"""What control costs: time to ready, memory at rest, list calls a second, and what one node's heartbeat takes.

Starts a control of its own on a free port and a temporary folder. Limits of the design, on two cores: ready < 2 s on
a kept database, < 120 MiB at rest, more than 1,000 list calls a second with p99 < 10 ms.

Run: `.venv/bin/python benchmarks/control.py [--nodes 20] [--seconds 3]`
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from gpupool.core.ids import new_id
from gpupool.core.keys import SigningKey
from gpupool.core.records import ProcessRecord

READY_SECONDS, MEBIBYTES, CALLS, P99_MS = 2.0, 120, 1000, 10.0


class Caller:
    """One keep-alive connection that asks for one thing after another."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> bytes:
        """Return the body of the answer, which must be a success."""
        head = {"Host": "control", "Content-Length": str(len(body)), **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        self._writer.write(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        got = await self._reader.readexactly(length)
        if not answer.startswith(b"http/1.1 2"):
            raise RuntimeError(got.decode())
        return got


@contextmanager
def control(home: Path) -> Iterator[tuple[float, ProcessRecord]]:
    """Run control; yield the seconds until it listened, and its record."""
    path = home / "run" / "control.json"
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpupool", "control", "serve", "--port", "0", "--home", str(home)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        stderr=subprocess.DEVNULL,
    )
    try:
        while (record := ProcessRecord.read(path)) is None:
            if process.poll() is not None:
                raise RuntimeError("control ended at once")
            time.sleep(0.005)
        yield time.perf_counter() - begun, record
    finally:
        process.terminate()
        process.wait(30)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_seconds(pid: int) -> float:
    """Return the processor time a process has used: what stays comparable on a busy machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def join(caller: Caller, home: Path, number: int) -> tuple[str, SigningKey]:
    """Let one node join and show its CPU."""
    key = SigningKey.load_or_make(home / f"node-{number}.key")
    token = (home / "keys" / "join.token").read_text().strip()
    wanted = {"name": f"node-{number}", "public_key": key.public_text, "address": "127.0.0.1"}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    reply = await caller.ask("POST", "/v1/agent/join", headers, json.dumps(wanted).encode())
    node_id = str(json.loads(reply)["node_id"])
    device = {"id": f"cpu-{number}", "kind": "cpu", "name": "CPU", "index": 0, "memory_mib": 8192}
    await report(caller, node_id, key, complete=True, devices=[device])
    return node_id, key


async def report(caller: Caller, node_id: str, key: SigningKey, **fields: object) -> None:
    """Send one signed report; without fields a heartbeat."""
    values = {"report_id": new_id("rep"), "sent_at": "2026-01-01T00:00:00Z", "session": "s-1", **fields}
    body = json.dumps(values).encode()
    headers = key.headers(node_id, "POST", "/v1/agent/reports", body, int(time.time()))
    await caller.ask("POST", "/v1/agent/reports", headers, body)


async def measure(
    port: int, connections: int, seconds: float, act: Callable[[Caller], "asyncio.Future[object]"]
) -> tuple[float, float, float]:
    """Return calls a second, and p50 and p99 in milliseconds."""
    spans: list[float] = []
    deadline = time.perf_counter() + seconds

    async def one() -> None:
        async with Caller(port) as caller:
            while (begun := time.perf_counter()) < deadline:
                await act(caller)
                spans.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    centiles = statistics.quantiles(spans, n=100)
    return len(spans) / (time.perf_counter() - begun), centiles[49] * 1e3, centiles[98] * 1e3


async def load(home: Path, record: ProcessRecord, nodes: int, seconds: float) -> bool:
    """Fill the pool, then measure; return whether the list calls hold their limits."""
    token = (home / "keys" / "operator.token").read_text().strip()
    bearer = {"Authorization": f"Bearer {token}"}
    port, pid = record.port or 0, record.process.pid
    async with Caller(port) as caller:
        joined = [await join(caller, home, number) for number in range(nodes)]
    node_id, key = joined[0]
    fits = True
    for name, act in {
        "GET /healthz": lambda caller: caller.ask("GET", "/healthz", {}),
        f"GET /v1/nodes ({nodes} nodes)": lambda caller: caller.ask("GET", "/v1/nodes", bearer),
        "GET /v1/endpoints": lambda caller: caller.ask("GET", "/v1/endpoints?protocol=openai", bearer),
        "heartbeat (signed here too)": lambda caller: report(caller, node_id, key),
    }.items():
        for connections in (1, 8):
            used = cpu_seconds(pid)
            rate, p50, p99 = await measure(port, connections, seconds, act)
            cost = (cpu_seconds(pid) - used) / (rate * seconds) * 1e6
            figures = f"{rate:8.0f}/s   p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   {cost:5.0f} us CPU a call"
            print(f"{name:<28} c={connections:<3} {figures}")
            if "/v1/nodes" in name and connections > 1:
                fits = rate > CALLS and p99 < P99_MS
    return fits


def main() -> int:
    """Measure and compare with the limits; 1 when one is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with control(home) as (fresh, _):
            pass
        with control(home) as (kept, record):
            time.sleep(1.0)
            rest, cpu = resident_mib(record.process.pid), cpu_seconds(record.process.pid)
            print(f"ready on a fresh folder {fresh:.2f} s, on a kept one {kept:.2f} s ({cpu:.2f} s CPU)")
            print(f"{rest:.0f} MiB at rest")
            fits = asyncio.run(load(home, record, given.nodes, given.seconds))
            print(f"{resident_mib(record.process.pid):.0f} MiB after the load")
    fits = fits and kept < READY_SECONDS and rest < MEBIBYTES
    print("within the limits" if fits else "a limit is broken")
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
