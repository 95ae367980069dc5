"""Finds out what a node speaks, and whether one that failed works again.

A node is asked ``GET /v1/server``. An HTTP answer means HTTP (and tells what a proxy has behind it); a node that
takes the connection and does anything else is a Gigahorse server, which knows only frames. Whether such a server
works again shows best with a request that it has answered before: its content is closed to us, but it may be asked
any number of times. A connection alone proves little, for a hung server takes those too.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Final

from gpupool.recompute.proxy.framing import FRAME_MOST, HEADER
from gpupool.recompute.proxy.http_links import REPLY_LIMIT
from gpupool.recompute.proxy.nodes import Kind, Node

CONNECT_SECONDS: Final = 1.5
HTTP_SECONDS: Final = 1.5
FRAME_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe learned."""

    reachable: bool
    kinds: frozenset[Kind] = frozenset()
    well: bool = False
    """It can take requests."""
    proxies: frozenset[str] = frozenset()
    view: dict[str, object] | None = field(default=None)
    why: str = ""


async def ask_server(node: Node) -> Finding:
    """Ask a node what it is; never raises for what the node does."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(node.wish.host, node.wish.port, limit=REPLY_LIMIT)
    except (OSError, TimeoutError) as error:
        reason = (
            "no connection in time" if isinstance(error, TimeoutError) else (error.strerror or str(error))
        )
        return Finding(reachable=False, why=reason.lower())
    head = body = b""
    try:
        writer.write(b"GET /v1/server HTTP/1.1\r\nHost: gpupool\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(HTTP_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1."):
                body = await _body(reader, head)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        body = b""
    finally:
        writer.close()
    return _finding(head, body)


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """Return what the head announces; without a length, everything up to the end."""
    length = _headers(head).get("content-length", "")
    if length.isdecimal() and len(length) < 9:
        return await reader.readexactly(min(int(length), REPLY_LIMIT))
    body = b""
    while len(body) < REPLY_LIMIT and (piece := await reader.read(REPLY_LIMIT)):
        body += piece
    return body


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _finding(head: bytes, body: bytes) -> Finding:
    if not head.startswith(b"HTTP/1."):
        return Finding(reachable=True, kinds=frozenset({Kind.FRAMES}), well=True)
    first, headers = head.partition(b"\r\n")[0].decode("latin-1"), _headers(head)
    proxies = frozenset(name for name in headers.get("x-gpupool-proxy", "").split(",") if name)
    told = {kind for kind in Kind if kind in headers.get("x-gpupool-kinds", "").split(",")}
    view = _view(body)
    well = " 200 " in first and view is not None and view.get("state") == "ready"
    why = "" if well else f"it answered {first[:60]!r} and is not ready"
    kinds = frozenset(told) if proxies else frozenset({Kind.HTTP})
    return Finding(reachable=True, kinds=kinds, well=well, proxies=proxies, view=view, why=why)


def _view(body: bytes) -> dict[str, object] | None:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


async def ask_frame(node: Node) -> bool:
    """Tell whether a Gigahorse server answers a request that it has answered before; without one, connects only."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(node.wish.host, node.wish.port)
    except (OSError, TimeoutError):
        return False
    try:
        if not node.last_frame:
            return True
        writer.write(node.last_frame)
        async with asyncio.timeout(FRAME_SECONDS):
            size = int.from_bytes(await reader.readexactly(HEADER), "little")
            if not 0 < size <= FRAME_MOST:
                return False
            await reader.readexactly(size)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()
    return True
