"""Requests per second and latency of the proxy, beside other proxies in the same run.

A node and the load run in this process' children; every proxy named is measured in turn with 1, 16, 100 and 1,000
clients, each with one connection a request as real harvesters have. A proxy of another kind takes part when its
command is given; ``{port}`` and ``{node}`` in it are filled in:

    python benchmarks/proxy.py --other "other-proxy --listen 127.0.0.1:{port} --to {node}"
"""

import argparse
import asyncio
import multiprocessing
import shlex
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final, cast

FRAME: Final = (116).to_bytes(4, "little") + bytes(116)
REPLY: Final = (100).to_bytes(4, "little") + bytes(100)
OURS: Final = (
    f"{sys.executable} -m gpupool recompute proxy --host 127.0.0.1 --port {{port}} --node {{node}}"
    " --sockets {sockets}"
)


class _Answer(asyncio.Protocol):
    """Answers each whole frame after a delay."""

    delay = 0.0

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._buffer[:4] == b"GET ":
            self._transport.abort()
            return
        while len(self._buffer) >= len(FRAME):
            self._buffer = self._buffer[len(FRAME) :]
            if self.delay:
                asyncio.get_running_loop().call_later(self.delay, self._transport.write, REPLY)
            else:
                self._transport.write(REPLY)


class _Ask(asyncio.Protocol):
    """One request on its own connection."""

    def __init__(self, done: "asyncio.Future[bool]") -> None:
        self._done = done
        self._left = len(REPLY)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(FRAME)

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left == 0:
            if not self._done.done():
                self._done.set_result(True)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(False)


def node(port: int, delay: float) -> None:
    """Serve until killed."""
    import uvloop

    async def serve() -> None:
        _Answer.delay = delay
        server = await asyncio.get_running_loop().create_server(_Answer, "127.0.0.1", port, backlog=4096)
        await server.serve_forever()

    uvloop.run(serve())


async def load(port: int, clients: int, seconds: float) -> tuple[list[float], int]:
    """Return the latencies in seconds of what was answered, and how many were not."""
    loop, times, faults = asyncio.get_running_loop(), [], 0
    end = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal faults
        while (began := time.perf_counter()) < end:
            done: asyncio.Future[bool] = loop.create_future()
            try:
                await loop.create_connection(partial(_Ask, done), "127.0.0.1", port)
            except OSError:
                faults += 1
                continue
            if await done:
                times.append(time.perf_counter() - began)
            else:
                faults += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return sorted(times), faults


def measure(name: str, command: str, ports: dict[str, str], clients: list[int], seconds: float) -> None:
    """Start a proxy, load it, and print a line for each number of clients."""
    import uvloop

    port = _free_port()
    words = [word.format(port=port, **ports) for word in shlex.split(command)]
    with Path("/dev/null").open("w") as null, subprocess.Popen(words, stdout=null, stderr=null) as process:
        try:
            _wait_for(port)
            uvloop.run(load(port, 4, 2.5))
            for count in clients:
                times, faults = uvloop.run(load(port, count, seconds))
                _report(name, count, times, faults, seconds, process.pid)
        finally:
            process.kill()


def _report(name: str, clients: int, times: list[float], faults: int, seconds: float, pid: int) -> None:
    memory = next(
        line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line
    )
    middle, high = times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000
    print(
        f"{name:10} {clients:5} clients  {len(times) / seconds:8.0f} req/s  p50 {middle:8.2f} ms"
        f"  p99 {high:8.2f} ms  {faults} failed  {int(memory) / 1024:.0f} MiB",
        flush=True,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"nothing listens on port {port}")


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", action="append", default=[], help="command of another proxy")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 100, 1000])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="how long the node takes")
    parser.add_argument("--sockets", type=int, default=12, help="connections to the node at first")
    given = parser.parse_args()
    port = _free_port()
    serving = multiprocessing.Process(target=node, args=(port, given.delay_ms / 1000), daemon=True)
    serving.start()
    _wait_for(port)
    ports = {"node": f"127.0.0.1:{port}", "sockets": str(given.sockets)}
    for name, command in [("gpupool", OURS), *((f"other {n}", c) for n, c in enumerate(given.other, 1))]:
        measure(name, command, ports, given.clients, given.seconds)
    serving.kill()


if __name__ == "__main__":
    main()
