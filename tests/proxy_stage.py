"""A recompute proxy in the test's own loop, and servers behind it that do what the test says."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from gpupool.recompute.proxy.main import listen, running
from gpupool.recompute.proxy.proxying import ProxyCore
from gpupool.recompute.proxy.settings import ProxySettings
from polling import eventually

PATIENCE = 20.0
PROOF = {"proof": [f"{x:x}" for x in range(64)], "checked": "challenge"}
QUALITY = {"x": ["1", "2"], "checked": "tables"}
VIEW = {
    "instance_id": "inst-server",
    "version": "1",
    "state": "ready",
    "k": [32],
    "levels": [1, 2],
    "devices": [{"kind": "cpu", "name": "c", "engine": "numba", "workers": 1}],
    "rates": [],
    "queue": {"running": 0, "waiting": 0, "room": 4},
}


def frame(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Return one whole frame with its head; raise IncompleteReadError where the stream ends."""
    async with asyncio.timeout(PATIENCE):
        head = await reader.readexactly(4)
        return head + await reader.readexactly(struct.unpack("<I", head)[0])


class Node:
    """A server on a free port whose ``mode`` may change at any time."""

    def __init__(self) -> None:
        self.mode = "ok"
        self.delay = 0.0
        self.tls: ssl.SSLContext | None = None
        self.resumed = 0
        self.port = 0
        self.connections = 0
        self.peak = 0
        self.seen: list[bytes] = []
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Be killed: the listener and all connections go at once."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        secured = writer.get_extra_info("ssl_object")
        self.resumed += bool(secured and secured.session_reused)
        self.peak = max(self.peak, len(self._writers))
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def misbehave(self, writer: asyncio.StreamWriter) -> bool:
        """Do what the mode says; tell whether the request is dealt with by that."""
        if self.mode == "hang":
            await asyncio.Event().wait()
        if self.mode == "reset":
            taken = writer.get_extra_info("socket")
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self.mode in {"reset", "close"}:
            writer.transport.abort()
            raise ConnectionResetError
        if self.mode == "garbage":
            writer.write(b"\xff\xff\xff\x7f\x01\x02")
            await writer.drain()
            return True
        if self.delay:
            await asyncio.sleep(self.delay)
        return False


class FrameNode(Node):
    """Like a Gigahorse server: anything but a frame, even an empty one, ends the connection."""

    def __init__(
        self, answer: Callable[[bytes], bytes] = lambda request: frame(b"re:" + request[4:])
    ) -> None:
        super().__init__()
        self.answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(4)
            size = struct.unpack("<I", head)[0]
            if not 0 < size <= 2**20:
                return
            request = head + await reader.readexactly(size)
            self.seen.append(request)
            if await self.misbehave(writer):
                continue
            reply = self.answer(request)
            if self.mode == "partial":
                writer.write(reply[: len(reply) // 2])
                await writer.drain()
                return
            writer.write(reply)
            await writer.drain()


class HttpNode(Node):
    """Like our server, with answers as scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.status = 200
        self.token: str | None = None
        self.body: object = None
        self.headers: list[dict[str, str]] = []
        self.view: dict[str, object] = dict(VIEW)
        self.proxy_header = self.kinds_header = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *rest = head.split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
                self._write(
                    writer, 401, {"code": "unauthorized", "detail": "This server wants a bearer token."}
                )
                continue
            if first.startswith("GET /v1/server"):
                if self.mode == "hang":
                    await asyncio.Event().wait()
                self._write(writer, 200, self.view)
                continue
            self.seen.append(body)
            self.headers.append(headers)
            if await self.misbehave(writer):
                continue
            right: object = QUALITY if "qualities" in first else PROOF
            self._write(writer, self.status, self.body if self.body is not None else right)
            await writer.drain()

    def _write(self, writer: asyncio.StreamWriter, status: int, body: object) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        extra = f"X-Gpupool-Proxy: {self.proxy_header}\r\n" if self.proxy_header else ""
        extra += f"X-Gpupool-Kinds: {self.kinds_header}\r\n" if self.kinds_header else ""
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{extra}Content-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)


@asynccontextmanager
async def nodes(*wanted: Node) -> AsyncIterator[None]:
    """Run servers for as long as the block lasts."""
    for node in wanted:
        await node.start()
    try:
        yield
    finally:
        for node in wanted:
            await node.stop()


@dataclass
class ProxyStage:
    """A running proxy."""

    core: ProxyCore
    port: int

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, payload: bytes) -> bytes:
        """Ask as a real Gigahorse client does, one connection a request; return the answer's payload."""
        reader, writer = await self.connect()
        try:
            writer.write(frame(payload))
            return (await read_frame(reader))[4:]
        finally:
            writer.transport.abort()

    async def exchange(self, data: bytes) -> bytes:
        """Send bytes, and return everything until the proxy closes."""
        reader, writer = await self.connect()
        received = b""
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                async with asyncio.timeout(PATIENCE):
                    while piece := await reader.read(65536):
                        received += piece
        finally:
            writer.transport.abort()
        return received

    async def http(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of one request; ``_`` in a header's name stands for ``-``."""
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        received = await self.exchange(head.encode() + body)
        top, _, answer = received.partition(b"\r\n\r\n")
        first, *rest = top.decode().split("\r\n")
        named = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        return int(first.split()[1]), named, answer

    async def known(self, count: int) -> None:
        """Wait until ``count`` nodes have said what they speak."""
        await eventually(
            lambda: sum(bool(node.kinds) for node in self.core.directory.nodes.values()) == count,
            PATIENCE,
            "finding out what the nodes speak",
        )


@asynccontextmanager
async def proxy(*behind: Node | str, **settings: object) -> AsyncIterator[ProxyStage]:
    """Run a proxy on a free port for as long as the block lasts."""
    names = tuple(node if isinstance(node, str) else node.address for node in behind)
    given = replace(
        ProxySettings(port=0, nodes=names, drain_seconds=5.0, log_level="WARNING", check_answers=False),
        **settings,  # type: ignore[arg-type]
    )
    with listen(given) as listener:
        port = int(listener.getsockname()[1])
        async with running(given, listener) as (core, _):
            yield ProxyStage(core, port)
