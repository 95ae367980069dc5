"""Limits on what comes in: headers, body size and the time a body may take.

A body is read whole before its route runs, chunk by chunk against its limit, so that no route ever holds more than
that and none waits for a sender that trickles.
"""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpupool.contracts.agent_link import MAX_LOG_BYTES, MAX_REPORT_BYTES
from gpupool.control.authorising import is_miner_path
from gpupool.core.errors import DeadlineError, InvalidInputError, TooLargeError
from gpupool.core.nesting import MOST_LEVELS, is_deeper

MAX_BODY_BYTES: Final = 1024 * 1024
MAX_MINER_BODY_BYTES: Final = 16 * 1024
MAX_HEADER_BYTES: Final = 32 * 1024
MAX_HEADERS: Final = 100
MAX_TARGET_BYTES: Final = 8 * 1024
BODY_SECONDS: Final = 30.0
DROPPED: Final = 4
"""A body is read up to so many times its limit before its sender is cut off."""


class SlowBodyError(DeadlineError):
    """The body of the request did not arrive in time."""

    code = "request_timeout"
    status = 408
    default_remedy = "Send the whole request at once, or over a faster line."


class HeadersTooLargeError(TooLargeError):
    """The request's head is larger than the limit."""

    status = 431


def body_limit(path: str) -> int:
    """Return how many bytes the body of a request to ``path`` may have."""
    if path == "/v1/agent/reports":
        return MAX_REPORT_BYTES
    if path.startswith("/v1/agent/logs/"):
        return MAX_LOG_BYTES
    return MAX_MINER_BODY_BYTES if is_miner_path(path) else MAX_BODY_BYTES


def check_head(scope: Scope) -> None:
    """Raise HeadersTooLargeError where the request's head is beyond the limits, InvalidInputError for a NUL in it."""
    headers = scope["headers"]
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        raise HeadersTooLargeError(
            f"The headers are larger than {MAX_HEADER_BYTES} bytes or more than {MAX_HEADERS}."
        )
    if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > MAX_TARGET_BYTES:
        raise HeadersTooLargeError(f"The address of the request is longer than {MAX_TARGET_BYTES} bytes.")
    # Nothing is called so, and PostgreSQL cannot even be asked for it.
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        raise InvalidInputError("The address of the request holds a NUL character.")


class BodyLimits:
    """ASGI layer that reads each body against its limit and hands it on whole."""

    def __init__(self, app: ASGIApp, seconds: float = BODY_SECONDS) -> None:
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read one request's body, then let its route run."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await read_body(scope, receive)
        except TimeoutError as error:
            raise SlowBodyError(f"The body did not arrive within {self._seconds:g} s.") from error
        if body is None:
            return
        check_nesting(scope["path"], body)
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, replay, send)


def check_nesting(path: str, body: bytes) -> None:
    """Raise InvalidInputError where a JSON body is nested too deep; logs are text, and may hold what they like."""
    if not path.startswith("/v1/agent/logs/") and is_deeper(body):
        raise InvalidInputError(f"The body is nested deeper than {MOST_LEVELS} levels.")


async def read_body(scope: Scope, receive: Receive) -> bytes | None:
    """Return the whole body, or None when the client left; raise TooLargeError beyond the limit of the path.

    A body somewhat too large is read to its end (and dropped), since a sender that is cut off sees a broken
    connection instead of the answer.
    """
    limit = body_limit(scope["path"])
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    length = int(declared) if declared.isdigit() else 0
    body, size = bytearray(), 0
    more = length <= DROPPED * limit
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece = message.get("body", b"")
        size += len(piece)
        if size <= limit:
            body += piece
        more = message.get("more_body", False) and size <= DROPPED * limit
    if max(size, length) > limit:
        raise TooLargeError(f"The body is larger than {limit} bytes.")
    return bytes(body)
