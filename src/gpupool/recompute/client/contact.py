"""What stands at an address: resolved, reached, and told by its first words whether it is what a farm wants there.

It asks ``GET /v1/server`` over a bare connection, since an HTTP library would hide what a stranger says.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from gpupool.contracts.recompute import SERVER_PATH, RecomputeServerView
from gpupool.recompute.client.credentials import Credentials
from gpupool.recompute.client.hosts import Host
from gpupool.recompute.tls_words import PinMismatchError, of_asking, of_certificate

_HEAD_LIMIT: Final = 16 * 1024
_BODY_LIMIT: Final = 256 * 1024
_HEAD: Final = re.compile(rb"HTTP/1\.[01] (\d{3})[^\r\n]*\r\n(.*)", re.DOTALL)


class Found(StrEnum):
    """What was found, from worst to best."""

    NO_NAME = "its name has no address"
    CLOSED = "nothing listens there"
    NO_WAY = "no connection comes about"
    NOT_TRUSTED = "its certificate is not trusted"
    WANTS_TLS = "it speaks TLS, and is asked without"
    WANTS_PLAIN = "it does not speak TLS, and is asked with it"
    GIGAHORSE = "it takes the connection and does not speak HTTP, as a Gigahorse server does"
    STRANGER = "something else listens there"
    WANTS_CERTIFICATE = "it wants a client certificate"
    LOCKED = "it wants a token"
    NOT_LET_IN = "it does not know the token that it was shown"
    SERVER = "a recompute server or proxy"


@dataclass(frozen=True, slots=True)
class Contact:
    """What came of asking one host."""

    host: Host
    found: Found
    detail: str = ""
    """More words: the library's reason, or what a stranger said."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    view: RecomputeServerView | None = None
    remedy: str | None = None
    """What to do, where that is known better than from ``found``."""


async def contact(host: Host, seconds: float, credentials: Credentials) -> Contact:
    """Ask ``host`` what it is; every step may take ``seconds``. Never raises for what the host does."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            await loop.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        return Contact(host, Found.NO_NAME, _reason(error, seconds))
    tls = (credentials.tls or ssl.create_default_context()) if host.tls else None
    try:
        said = await _ask(host, tls, seconds, credentials.token)
    except ssl.SSLCertVerificationError as error:
        words = of_certificate(error)
        return Contact(host, Found.NOT_TRUSTED, f"it {words.what}", remedy=words.remedy)
    except ssl.SSLError as error:
        words = of_asking(error)
        if isinstance(error, PinMismatchError):
            return Contact(host, Found.NOT_TRUSTED, f"it {words.what}", remedy=words.remedy)
        found = Found.WANTS_CERTIFICATE if "client certificate" in words.what else Found.WANTS_PLAIN
        return Contact(host, found, error.reason or str(error), remedy=words.remedy)
    except ConnectionRefusedError:
        return Contact(host, Found.CLOSED)
    except (OSError, TimeoutError) as error:
        return Contact(host, Found.NO_WAY, _reason(error, seconds))
    if not said and not host.tls and await _speaks_tls(host, seconds):
        return Contact(host, Found.WANTS_TLS)
    return _judge(host, said, shown=credentials.token is not None)


async def _ask(host: Host, tls: ssl.SSLContext | None, seconds: float, token: str | None) -> bytes:
    """Return what the host says within ``seconds``; empty where it closes or stays silent."""
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(
            host.host, host.port, ssl=tls, limit=_HEAD_LIMIT, server_hostname=host.host if tls else None
        )
    said = bytearray()
    try:
        lines = [f"GET {SERVER_PATH} HTTP/1.1", f"Host: {host.name}", "Connection: close"]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(seconds):
            while len(said) < _BODY_LIMIT and (part := await reader.read(_HEAD_LIMIT)):
                said += part
    except (OSError, TimeoutError):
        return bytes(said)
    finally:
        writer.transport.abort()
    return bytes(said)


async def _speaks_tls(host: Host, seconds: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host.host, host.port, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


def _judge(host: Host, said: bytes, *, shown: bool) -> Contact:
    """Tell who says this; ``shown``: to whom brought a token."""
    if not said:
        return Contact(host, Found.GIGAHORSE)
    match = _HEAD.match(said)
    if match is None:
        if said.startswith((b"\x15\x03", b"\x16\x03")):
            return Contact(host, Found.WANTS_TLS)
        return Contact(host, Found.STRANGER, f"it says {said[:40]!r}")
    status, (head, _, body) = int(match[1]), match[2].partition(b"\r\n\r\n")
    headers = _headers(head)
    if status == 401 and b"certificate" in body:
        return Contact(host, Found.WANTS_CERTIFICATE, headers=headers)
    if status == 403 and b"tls_required" in body:
        return Contact(host, Found.WANTS_TLS, headers=headers)
    if status == 401:
        return Contact(host, Found.NOT_LET_IN if shown else Found.LOCKED, headers=headers)
    if status == 400 and b"HTTPS" in body:
        return Contact(host, Found.WANTS_TLS)
    try:
        view = RecomputeServerView.model_validate_json(_whole(body, headers))
    except ValidationError:
        server = headers.get("server", "no name given")[:60]
        return Contact(host, Found.STRANGER, f"an HTTP server ({server}), which answers {status}", headers)
    return Contact(host, Found.SERVER, headers=headers, view=view)


def _headers(head: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in head.decode("latin-1").split("\r\n"))
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _whole(body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return the body without the marks of chunks, where it came in chunks."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return body
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        if not re.fullmatch(rb"[0-9a-fA-F]{1,6}", size):
            break
        length = int(size, 16)
        parts.append(rest[:length])
        body = rest[length + 2 :]
    return b"".join(parts)


def _reason(error: OSError | TimeoutError, seconds: float) -> str:
    if isinstance(error, TimeoutError) and not error.args:
        return f"no answer within {seconds:g} s"
    return str(getattr(error, "strerror", None) or error)
