"""Two hundred clients when every server is dead, or far too slow: asking again must not multiply the load.

Servers and proxy are processes of their own. Each client is told at its deadline, and servers that come back find a
load they can bear.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpupool.balancing import Policy
from gpupool.recompute.demo import demo_request
from gpupool.recompute.proxy.settings import ProxySettings
from polling import eventually
from proxy_program import COMMAND, Program, program
from recompute_hosts import HostProcess, hosts

CLIENTS = 200
QUESTION = demo_request().model_dump_json().encode()
HEAD = b"POST /v1/proofs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Deadline-Ms: %d\r\nContent-Length: %d\r\n\r\n"
SOCKETS = ProxySettings(nodes=("a",)).http_sockets


async def ask(port: int, deadline_ms: int) -> int:
    """Return the status of one question on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(HEAD % (deadline_ms, len(QUESTION)) + QUESTION)
        async with asyncio.timeout(60):
            return int((await reader.readline()).split()[1])
    finally:
        writer.transport.abort()


async def ask_all(port: int, deadline_ms: int) -> list[int]:
    return await asyncio.gather(*(ask(port, deadline_ms) for _ in range(CLIENTS)))


@asynccontextmanager
async def proxy_before(servers: list[HostProcess], port: int) -> AsyncIterator[Program]:
    words = [word for server in servers for word in ("-n", server.name)]
    async with program(COMMAND, "recompute", "proxy", "-p", str(port), *words) as started:
        await started.listening()
        for server in servers:
            await started.says(f'"node": "{server.name}", "speaks": "http"')
        yield started


def tries(log: list[str]) -> list[int]:
    return [int(found[1]) for line in log if (found := re.search(r"tries = (\d+)", line))]


def allowed(requests: int, seconds: float) -> float:
    """Return how often servers may be asked at most: the budget, with what it holds before the first request."""
    policy = Policy()
    return (
        requests * (1 + policy.retry_budget_ratio)
        + policy.retry_floor_per_s * (seconds + 10)
        + CLIENTS * 0.05
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))


async def test_dead_servers_are_asked_within_the_budget_and_not_buried_when_they_are_back(
    free_port: int,
) -> None:
    with hosts(*["--delay 0.02"] * 3) as servers:
        async with proxy_before(servers, free_port) as started:
            loop = asyncio.get_running_loop()
            assert set(await ask_all(free_port, 30_000)) == {200}
            await eventually(lambda: len(tries(started.log)) == CLIENTS, 60, "the lines of the log")
            for server in servers:
                server.kill()
            began = loop.time()
            assert set(await ask_all(free_port, 2000)) == {504}
            await eventually(lambda: len(tries(started.log)) == 2 * CLIENTS, 60, "the lines of the log")
            assert sum(tries(started.log)[CLIENTS:]) <= allowed(CLIENTS, loop.time() - began)

            waiting = asyncio.ensure_future(ask_all(free_port, 60_000))
            for server in servers:
                server.start()
            assert set(await waiting) == {200}
            counts = [server.count() for server in servers]
            assert max(count["at_once"] for count in counts) <= SOCKETS
            assert sum(count["asked"] for count in counts) <= CLIENTS * 1.5 + CLIENTS * 0.05


@pytest.mark.slow  # two hundred questions until their deadline; the simulator plays the same in no time
async def test_servers_that_are_far_too_slow_are_asked_within_the_budget(free_port: int) -> None:
    with hosts(*["--delay 60"] * 3) as servers:
        async with proxy_before(servers, free_port):
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert set(await ask_all(free_port, 4000)) == {504}
            seconds = loop.time() - began
            counts = [server.count() for server in servers]
            assert max(count["at_once"] for count in counts) <= SOCKETS * 1.5, (
                "some are given up while others come"
            )
            assert sum(count["asked"] for count in counts) <= allowed(CLIENTS, seconds)
