"""The wire of the admin interface: small HTTP/1.1 on a loopback port of its own, one request a connection.

It is apart from the port of the clients, which is open to a network where anybody may connect. Who may read the
record file knows the token; nobody else gets more than a refusal. A web page that a browser on this machine is
tricked into does not know it either.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast
from urllib.parse import parse_qsl

import structlog

from gpupool.core.errors import (
    BusyError,
    GpupoolError,
    InvalidInputError,
    TooLargeError,
    UnauthorizedError,
)
from gpupool.core.tokens import same_secret

HEAD_LIMIT: Final = 8 * 1024
BODY_LIMIT: Final = 64 * 1024
MOST_CONNECTIONS: Final = 16
SECONDS: Final = 60.0
"""All the time of one request; a test of the alert hooks takes longest."""
_READ_SECONDS: Final = 10.0
log = structlog.get_logger(__name__)

Answer = Callable[[str, str, dict[str, str], Any], Awaitable[object]]
"""Method, path, query and parsed body (None without one) -> what JSON can say; raises GpupoolError."""


class AdminServer:
    """Listens on the loopback until closed."""

    def __init__(self, token: str, answer: Answer) -> None:
        self._token = token
        self._answer = answer
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen on a free port of 127.0.0.1 and return it; raise OSError where there is none."""
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0, limit=HEAD_LIMIT)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and end what is under way."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._open.add(task)
        try:
            async with asyncio.timeout(SECONDS):
                status, body = await self._serve(reader)
                data = json.dumps(body).encode()
                head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                writer.write(head.encode() + b"Connection: close\r\n\r\n" + data)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader) -> tuple[int, object]:
        try:
            if len(self._open) > MOST_CONNECTIONS:
                raise BusyError(f"The admin interface serves {MOST_CONNECTIONS} requests at once.")
            async with asyncio.timeout(_READ_SECONDS):
                method, target, headers = await _read_head(reader)
                self._check(headers)
                body = await _read_body(reader, headers)
            path, _, query = target.partition("?")
            return 200, await self._answer(method, path, dict(parse_qsl(query)), body)
        except GpupoolError as error:
            return error.status, {"code": error.code, "detail": error.message, "remedy": error.remedy}

    def _check(self, headers: dict[str, str]) -> None:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not same_secret(token.strip(), self._token):
            raise UnauthorizedError(
                "This request does not bring the token of the proxy's admin interface.",
                remedy="Run the command as the user of the proxy, with the same GPUPOOL_HOME.",
            )


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError as error:
        raise TooLargeError(f"The head is larger than {HEAD_LIMIT} bytes.") from error
    first, *lines = head.rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[1].startswith("/"):
        raise InvalidInputError("This is no HTTP request.")
    pairs = (line.partition(":") for line in lines)
    return words[0], words[1], {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> Any:
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()) or "transfer-encoding" in headers:
        raise InvalidInputError("The body needs a Content-Length.")
    if len(length) > 9 or int(length) > BODY_LIMIT:
        raise TooLargeError(f"The body is larger than {BODY_LIMIT} bytes.")
    data = await reader.readexactly(int(length))
    if not data:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError("The body is not JSON.") from error
