"""Finds out what a node speaks, and whether one that failed works again.

A node is asked ``GET /v1/server``. An HTTP answer means HTTP (and tells what a proxy has behind it); a node that
takes the connection and does anything else is a Gigahorse server, which knows only frames. Whether such a server
works again shows best with a request that it has answered before: its content is closed to us, but it may be asked
any number of times. A connection alone proves little, for a hung server takes those too.
"""

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from typing import Final

from gpupool.core.errors import EnvironmentProblemError
from gpupool.recompute.proxy.connecting import NoConnectionError, open_stream
from gpupool.recompute.proxy.framing import FRAME_MOST, HEADER
from gpupool.recompute.proxy.http_links import REPLY_LIMIT
from gpupool.recompute.proxy.nodes import Kind, Node
from gpupool.recompute.proxy.trust import Keyring

CONNECT_SECONDS: Final = 1.5
HTTP_SECONDS: Final = 1.5
FRAME_SECONDS: Final = 3.0
_TLS_REMEDY: Final = (
    "Give the node tls, tls=CA_FILE or tls=sha256:HEX: after its address in the file, in quotes after -n, or as "
    "`nodes add HOST tls`; --node-tls does it for all."
)


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
    remedy: str | None = None
    ours: bool = False
    """Nothing was learned: this machine is short of something."""


async def ask_server(node: Node, keyring: Keyring) -> Finding:
    """Ask a node what it is; never raises for what the node does."""
    try:
        token = keyring.authorization(node.trust)
        reader, writer = await open_stream(node, keyring, CONNECT_SECONDS, REPLY_LIMIT)
    except NoConnectionError as error:
        return Finding(reachable=False, why=error.why, remedy=error.remedy, ours=error.ours)
    except EnvironmentProblemError as error:
        return Finding(reachable=False, why=error.message, remedy=error.remedy)
    head = body = b""
    try:
        writer.write(b"GET /v1/server HTTP/1.1\r\nHost: gpupool\r\n" + token + b"Connection: close\r\n\r\n")
        async with asyncio.timeout(HTTP_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1."):
                body = await _body(reader, head)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        body = b""
    finally:
        writer.close()
    if not (head or node.trust.tls or node.kinds) and await _speaks_tls(node):
        why = "it takes TLS only, and is asked without"
        return Finding(reachable=False, why=why, remedy=_TLS_REMEDY)
    return _finding(head, body)


async def _speaks_tls(node: Node) -> bool:
    """Tell whether a node that says nothing to plain words, and of which nothing is known yet, wants TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(node.wish.host, node.wish.port, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


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
    remedy = None
    if " 401 " in first:
        what = "a client certificate" if b"certificate" in body else "a token that this proxy does not bring"
        why, remedy = f"it wants {what}", "Give the node token-file=FILE, or cert=FILE and key=FILE."
    kinds = frozenset(told) if proxies else frozenset({Kind.HTTP})
    return Finding(reachable=True, kinds=kinds, well=well, proxies=proxies, view=view, why=why, remedy=remedy)


def _view(body: bytes) -> dict[str, object] | None:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


async def ask_frame(node: Node, keyring: Keyring) -> bool | None:
    """Tell whether a Gigahorse server answers a request that it has answered before; without one, connects only.

    None: nothing was learned, because this machine is short of something.
    """
    try:
        reader, writer = await open_stream(node, keyring, CONNECT_SECONDS)
    except NoConnectionError as error:
        return None if error.ours else False
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
