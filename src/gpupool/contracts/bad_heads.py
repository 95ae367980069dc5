"""Refuses requests whose head cannot be read, on the servers that run on aiohttp.

Its parser gives up before any route or middleware runs, and the library then answers by itself: with no number where
there are too many headers, in plain text, and with a trace in the log that holds a piece of the head, which may be a
client's key. Here the limits have numbers, the answer has the form of the server it comes from, and the log has one line.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

MAX_LINE_BYTES: Final = 8190
"""Of the request line, of a header's name, and of a header's value."""
MAX_HEADERS: Final = 128
_TOO_MANY: Final = "Too many headers"
Refuse = Callable[[int, str], web.Response]
"""Makes a server's answer from a status and a sentence."""
log = structlog.get_logger(__name__)


class BoundedHeads(web.RequestHandler):
    """One connection, which refuses heads beyond the limits."""

    __slots__ = ("_refuse",)

    def __init__(self, server: web.Server, refuse: Refuse, **options: Any) -> None:
        """``options``: those of aiohttp's handler."""
        super().__init__(
            server,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            max_headers=MAX_HEADERS,
            **options,
        )
        self._refuse = refuse

    @property
    def waits(self) -> bool:
        """Whether no request is here, or only a part of its head."""
        return self._waiter is not None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what the parser could not read; the rest is for the library, as ever."""
        if not isinstance(exc, BadHttpMessage) or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        status, sentence = describe(exc)
        log.info("request_head_refused", client=request.remote, status=status, why=type(exc).__name__)
        answer = self._refuse(status, sentence)
        answer.force_close()
        return answer


def connections(server: web.Server | None, refuse: Refuse, **options: Any) -> Callable[[], asyncio.Protocol]:
    """Return what makes the connections of a server that has been set up; ``options``: those of aiohttp's handler."""
    if server is None:
        raise RuntimeError("set up the runner before its connections")
    loop = asyncio.get_running_loop()
    return lambda: BoundedHeads(server, refuse, loop=loop, **options)


def has_place(server: web.Server | None, most: int) -> bool:
    """Tell whether one more connection may be opened; where ``most`` are, the oldest that waits is closed for it."""
    if server is None:
        return False
    open_ones = server.connections
    if len(open_ones) < most:
        return True
    waiting = next((one for one in open_ones if isinstance(one, BoundedHeads) and one.waits), None)
    if waiting is not None:
        waiting.force_close()
    return waiting is not None


def describe(fault: BadHttpMessage) -> tuple[int, str]:
    """Return the status, and a sentence for the sender, with the limit where there is one."""
    if isinstance(fault, LineTooLong):
        return 431, f"The request's address, or one of its headers, is longer than {MAX_LINE_BYTES} bytes."
    if fault.message.startswith(_TOO_MANY):
        return 431, f"The request has more than {MAX_HEADERS} headers."
    what = next(iter(fault.message.splitlines()), "").strip(" :.")[:100]
    return 400, f"The request is not HTTP/1.1 that can be read: {what or 'bad request'}."
