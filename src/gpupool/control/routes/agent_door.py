"""The short way for what ten thousand agents send all day: reports, and the streams on which they listen.

A door beside the application, with the same limits and checks. The routes of `control.routes.agent` stay what is
published, and take whatever this door leaves to them. It saves two thirds of the processor time of a report and of the
memory of a stream: no layers for other callers, no search for the route, no tree of dependencies, no response object.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpupool.contracts.agent_link import Report, ReportReply
from gpupool.contracts.problems import describe
from gpupool.control.http.boundary import Boundary
from gpupool.control.http.guard import check_signed
from gpupool.control.http.limits import BodyLimits
from gpupool.control.http.metrics import Metrics
from gpupool.control.http.problems import problem_response, request_id_of
from gpupool.control.pool import Pool
from gpupool.control.reporting import take_report
from gpupool.control.routes.agent import check_signature, command_lines
from gpupool.control.serving import WHEN_LOST
from gpupool.core.errors import BusyError, GpupoolError, InvalidInputError

REPORTS: Final = ("POST", "/v1/agent/reports")
_COMMANDS: Final = ("GET", "/v1/agent/commands")
_AFTER: Final = re.compile(rb"after=([0-9]{1,18})")
RETURNS_A_SECOND: Final = 2500
"""Agents that should come back in a second: some more than one control takes, since those that wait share transactions."""
MOST_AT_ONCE: Final = 800
"""Reports in work, beyond which those of agents that come back are turned away: a second or two of work."""
_COMPLETE: Final = re.compile(rb'"complete": ?true')
_NDJSON: Final = [(b"content-type", b"application/x-ndjson")]


@dataclass(frozen=True, slots=True)
class _Route:
    """What the metrics know a route by."""

    path: str


_ROUTES: Final = {path: _Route(path) for _, path in (REPORTS, _COMMANDS)}


class _Signed:
    """ASGI layer that turns away, before its body is read, what carries no signature."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_signed(scope)
        await self._app(scope, receive, send)


class AgentDoor:
    """An ASGI application for reports and command streams; `fits` tells whether a request is for it."""

    def __init__(self, pool: Pool, metrics: Metrics, body_seconds: float) -> None:
        """``body_seconds``: how long a body may take."""
        self._pool = pool
        self._open = 0
        self._app = Boundary(_Signed(BodyLimits(self._serve, body_seconds)), metrics)

    @staticmethod
    def fits(scope: Scope) -> bool:
        """Tell whether a request is a report or a command stream as every agent asks for it."""
        what = (scope.get("method"), scope.get("path"))
        return what == REPORTS or (what == _COMMANDS and bool(_AFTER.fullmatch(scope["query_string"])))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        after = _AFTER.fullmatch(scope["query_string"]) if scope["path"] == _COMMANDS[1] else None
        scope["route"] = _ROUTES[scope["path"]]
        self._open += after is None
        try:
            body = (await receive()).get("body", b"")
            if after is None and self._open > MOST_AT_ONCE and _COMPLETE.search(body):
                # Before the costly part: its agent comes again after a pause that no other has.
                raise BusyError(f"{MOST_AT_ONCE} agents are being heard.", retry_after=5.0)
            node_id = await check_signature(self._pool, scope, _headers(scope), body)
            if after is None:
                await self._take(node_id, body, send)
                return
        except GpupoolError as error:
            await problem_response(error, request_id_of(scope))(scope, receive, send)
            return
        finally:
            self._open -= after is None
        # The stream stays open for days, and nothing in it asks for them again.
        scope["headers"].clear()
        await _stream(command_lines(self._pool, node_id, int(after[1])), scope, send)

    async def _take(self, node_id: str, body: bytes, send: Send) -> None:
        try:
            report = Report.model_validate_json(body)
        except ValidationError as error:
            raise InvalidInputError(describe(error)) from error
        reply = await take_report(self._pool, node_id, report)
        said = _said(reply.session_known, spread_of(len(self._pool.links)))
        await send({"type": "http.response.start", "status": 200, "headers": said[0]})
        await send(said[1])


@lru_cache(maxsize=64)
def _said(known: bool, spread: float) -> tuple[list[tuple[bytes, bytes]], Message]:
    body = ReportReply(session_known=known, spread_seconds=spread).model_dump_json().encode()
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    return headers, {"type": "http.response.body", "body": body}


def spread_of(agents: int) -> float:
    """Return the seconds over which so many agents should spread their return."""
    return round(agents / RETURNS_A_SECOND, 1)


def _headers(scope: Scope) -> Mapping[str, str]:
    """Return the headers; of one given twice the first counts, as it does for the routes."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


async def _stream(lines: AsyncGenerator[bytes, None], scope: Scope, send: Send) -> None:
    """Send lines until they end or the agent leaves."""
    sending, left = asyncio.current_task(), False

    def leave() -> None:
        nonlocal left
        left = True
        if sending is not None:
            sending.cancel()

    # Waiting for the disconnect in a task of its own would take as much memory again.
    scope[WHEN_LOST].append(leave)
    try:
        async with aclosing(lines):
            await send({"type": "http.response.start", "status": 200, "headers": _NDJSON})
            async for line in lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
    except asyncio.CancelledError:
        if not left:
            raise
