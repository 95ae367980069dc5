"""Bytes as no sane client sends them: too many, too few, too slowly. Each server ends it in time and serves on.

Real sockets on the real servers, with limits set short. What each server refuses in well-formed requests is tested
beside it.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass

import pytest
import pytest_asyncio

from gpupool.core.records import ProcessRecord
from light_pool import LightPool, Member
from recompute_stage import ScriptedEngine, stage

LIMIT_SECONDS = 1.0
SHORT = {
    "GPUPOOL_CONTROL_HEAD_SECONDS": "1",
    "GPUPOOL_CONTROL_BODY_SECONDS": "1",
    "GPUPOOL_GATEWAY_IDLE_SECONDS": "1",
    "GPUPOOL_GATEWAY_BODY_SECONDS": "1",
}
PATIENCE = 30.0
ROLES = ("control", "gateway", "recompute")
pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class Server:
    """Where one server listens, and a request with a body that it would read."""

    port: int
    post: str
    slow_body: int
    """The status of a body that takes too long."""
    token: str = ""

    def head(self, length: int | str, *more: str) -> bytes:
        """Return the head of the request, announcing ``length`` bytes of body."""
        lines = [f"POST {self.post} HTTP/1.1", "Host: x", "Content-Type: application/json", *more]
        lines += [f"Authorization: Bearer {self.token}"] if self.token else []
        lines += [f"Content-Length: {length}"] if isinstance(length, int) else [length]
        return "\r\n".join([*lines, "", ""]).encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Server]]:
    """All three servers."""
    folder = tmp_path_factory.mktemp("raw")
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(LightPool(folder, **SHORT))
        pool.control.start()
        await pool.until(lambda: pool.try_once("GET", "/readyz"), "control")
        serve = ["gateway", "serve", "--port", "0"]
        gateway = Member("gateway", serve, pool.control.env, folder / "gateway.log")
        stack.callback(gateway.kill)
        gateway.start()
        record: ProcessRecord = await pool.until(lambda: pool.record("gateway"), "the gateway")
        assert record.port is not None
        recompute = await stack.enter_async_context(
            stage(ScriptedEngine(), recompute_idle_seconds=1, recompute_deadline_ms=1000)
        )
        yield {
            "control": Server(pool.port, "/v1/workloads", 408, pool.token),
            "gateway": Server(record.port, "/v1/chat/completions", 408),
            "recompute": Server(recompute.port, "/v1/proofs", 504),
        }


@pytest_asyncio.fixture(params=ROLES, loop_scope="module")
async def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> AsyncIterator[Server]:
    """One server, which must serve as ever when the test is over."""
    one = servers[request.param]
    yield one
    assert await exchange(one, [b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"]) == 200


async def exchange(server: Server, pieces: Iterator[bytes] | list[bytes], *, end: bool = False) -> int | None:
    """Send the pieces, a moment apart where they are many, and return the status; None when it was closed instead.

    ``end``: say that nothing more comes. Fails when neither happens in time.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    with closing(writer):
        async with asyncio.timeout(PATIENCE):
            answer = await send_until_answered(reader, writer, iter(pieces), end=end)
    return int(answer.split()[1]) if answer else None


async def send_until_answered(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: Iterator[bytes], *, end: bool
) -> bytes:
    """Return the first line of the answer; empty when the connection was closed without one."""
    line = asyncio.ensure_future(reader.readline())
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if (await asyncio.wait({line}, timeout=0.05))[0]:
                return line.result()
        if end and writer.can_write_eof():
            writer.write_eof()
        return await line
    except ConnectionError:
        return line.result() if line.done() and not line.exception() else b""
    finally:
        line.cancel()


@pytest.mark.parametrize("beginning", [b"", b"GET /healthz HTTP/1.1\r\nHost"], ids=["nothing", "half a head"])
async def test_a_client_that_falls_silent_is_let_go(server: Server, beginning: bytes) -> None:
    assert await exchange(server, [beginning]) in {None, 408}


async def test_a_head_that_trickles_in_is_let_go(server: Server) -> None:
    """Every byte is news, and still the head as a whole has its time."""
    lines = (b"X-Line-%d: more\r\n" % number for number in range(100_000))
    assert await exchange(server, itertools.chain([b"GET /healthz HTTP/1.1\r\n"], lines)) in {
        None,
        400,
        408,
        431,
    }


async def test_a_body_that_trickles_in_is_answered_in_time(server: Server) -> None:
    head = server.head(10_000)
    assert await exchange(server, itertools.chain([head], itertools.repeat(b" "))) == server.slow_body


async def test_chunks_that_trickle_in_are_answered_in_time(server: Server) -> None:
    head = server.head("Transfer-Encoding: chunked")
    assert (
        await exchange(server, itertools.chain([head], itertools.repeat(b"1\r\n \r\n"))) == server.slow_body
    )


@pytest.mark.parametrize("end", [True, False], ids=["half-closed", "gone"])
async def test_a_body_that_is_cut_off_harms_nobody(server: Server, end: bool) -> None:
    head = server.head(1000) + b'{"spec": '
    if end:
        assert await exchange(server, [head], end=True) in {None, 400, server.slow_body}
    else:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head)
        await writer.drain()
        writer.transport.abort()


@pytest.mark.parametrize(
    "beginning",
    [b"GET /healthz HTTP/1.1\r\nX-Long: ", b"GET /", b"GET /healthz HTTP/1.1\r\n"],
    ids=["header", "target", "headers"],
)
async def test_a_head_without_measure_is_refused(server: Server, beginning: bytes) -> None:
    endless = b"X: y\r\n" if beginning.endswith(b"\r\n") else b"y"
    flood = itertools.chain([beginning], itertools.repeat(endless * 20_000, 100))
    assert await exchange(server, flood) in {None, 400, 414, 431}


@pytest.mark.parametrize("length", [2**31, 2**63, 10**30])
async def test_a_body_beyond_all_limits_is_refused_by_its_announcement(server: Server, length: int) -> None:
    assert await exchange(server, [server.head(length), b"{"]) in {400, 413}


@pytest.mark.parametrize(
    "head",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"POST /v1/workloads HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/workloads HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"POST /v1/workloads HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["binary", "TLS", "no target", "version", "negative", "two lengths", "length and chunks"],
)
async def test_what_is_no_http_is_refused(server: Server, head: bytes) -> None:
    assert await exchange(server, [head]) in {None, 400, 401, 404, 405, 408, 505}


async def test_many_silent_clients_keep_nobody_out(server: Server) -> None:
    crowd = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(200)]
    assert await exchange(server, [b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"]) == 200
    async with asyncio.timeout(PATIENCE):
        for reader, _ in crowd:
            assert await reader.read() == b""
    for _, writer in crowd:
        writer.close()
