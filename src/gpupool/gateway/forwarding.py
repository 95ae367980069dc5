"""Sends a call to an endpoint and its answer back, as it comes.

A server that cannot be reached costs one retry, elsewhere if there is another; once a byte of an answer was seen there
is no second try. Whoever leaves, the other side is let go at once: the handler's cancellation closes the upstream's
connection, and an upstream's end closes the client's stream with an error event.
"""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import structlog
from aiohttp import hdrs, web

from gpupool.gateway.aliases import ask_by_its_name
from gpupool.gateway.faults import GatewayError, error_body, openai_error
from gpupool.gateway.headers import to_client, to_upstream
from gpupool.gateway.naming import ModelName, model_name
from gpupool.gateway.reading import OFFERS, Call
from gpupool.gateway.routing import Router, Upstream
from gpupool.gateway.streams import EventStream, EventTooLargeError
from gpupool.gateway.upstreams import UnreachableError, fault_of, read_whole

MAX_REPLY_BYTES: Final = 64 * 1024 * 1024
MAX_ERROR_BYTES: Final = 1024 * 1024
STALL_SECONDS: Final = 60.0
_NEVER_WAITS_BYTES: Final = 16 * 1024
"""With nothing in the transport's buffer, a piece of this size is below the mark at which a write waits."""
_QUOTED_CHARACTERS: Final = 500
log = structlog.get_logger(__name__)


class Forwarder:
    """Carries calls to the upstreams that the router chooses."""

    def __init__(self, kept: aiohttp.ClientSession, fresh: aiohttp.ClientSession, router: Router) -> None:
        """``kept`` keeps connections; ``fresh`` opens a new one each time, so that a retry never meets a stale one."""
        self._kept = kept
        self._fresh = fresh
        self._router = router

    async def forward(
        self, request: web.Request, call: Call, request_id: str, on_head: Callable[[], None] = lambda: None
    ) -> web.StreamResponse:
        """Return the answer to ``call``, already sent if it streams; raise GatewayError where there is none.

        ``on_head`` is called when the head of the upstream's answer is here.
        """
        upstream = self._router.choose(call.model)
        if upstream is None:
            raise self._router.absence(call.model)
        try:
            return await self._exchange(self._kept, upstream, request, call, request_id, on_head)
        except UnreachableError as error:
            other = self._after(error, call, request_id)
        try:
            return await self._exchange(self._fresh, other, request, call, request_id, on_head)
        except UnreachableError as error:
            self._note(error, call, request_id)
            raise error.fault(call.model) from error

    def _after(self, error: UnreachableError, call: Call, request_id: str) -> Upstream:
        """Return whom to ask after one could not be reached."""
        self._note(error, call, request_id)
        other = self._router.choose(call.model, [error.upstream])
        if other is None and error.hung_up:
            other = self._router.choose(call.model)
        if other is None:
            raise error.fault(call.model) from error
        return other

    def _note(self, error: UnreachableError, call: Call, request_id: str) -> None:
        endpoint = error.upstream.endpoint
        log.warning(
            "upstream_unreachable",
            endpoint=endpoint.id,
            placement=endpoint.placement,
            address=endpoint.address,
            model=call.model,
            why=str(error),
            request_id=request_id,
        )

    async def _exchange(
        self,
        session: aiohttp.ClientSession,
        upstream: Upstream,
        request: web.Request,
        call: Call,
        request_id: str,
        on_head: Callable[[], None],
    ) -> web.StreamResponse:
        query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
        headers = to_upstream(request.headers, request_id)
        with upstream.busy():
            reply = await ask_by_its_name(session, upstream, request.path + query, headers, call)
            on_head()
            async with reply:
                return await _relay(request, reply, model_name(call.model))


async def _relay(request: web.Request, reply: aiohttp.ClientResponse, model: ModelName) -> web.StreamResponse:
    if not 200 <= reply.status < 300:
        return await _relay_error(request, reply, model)
    if reply.content_type == "text/event-stream":
        return await _relay_events(request, reply, EventStream(model))
    body = await read_whole(reply, MAX_REPLY_BYTES)
    return web.Response(status=reply.status, headers=to_client(reply.headers), body=model.put_into(body))


async def _relay_error(request: web.Request, reply: aiohttp.ClientResponse, model: ModelName) -> web.Response:
    """Pass an error that has OpenAI's shape as it is; give any other one that shape."""
    body = await read_whole(reply, MAX_ERROR_BYTES)
    if reply.status == HTTPStatus.NOT_IMPLEMENTED:
        # 400, since clients take any status from 500 on for a passing fault and ask again.
        message = (
            f"The model {model.name!r} does not offer {OFFERS.get(request.path, request.path)}; ask another one "
            "(GET /v1/models lists them)."
        )
        return GatewayError(400, "not_supported", message, param="model").response()
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    shaped = openai_error(reply.status, value) if reply.status >= 400 else None
    if shaped is not None:
        sent = body if value == {"error": shaped} else json.dumps({**value, "error": shaped}).encode()
        return web.Response(status=reply.status, headers=to_client(reply.headers), body=sent)
    return _wrapped(request, reply, value, body).response()


def _wrapped(request: web.Request, reply: aiohttp.ClientResponse, value: Any, body: bytes) -> GatewayError:
    """Return an upstream's error of any other shape with what it said."""
    status = reply.status if reply.status >= 400 else 502
    said = str(value.get("detail") or value.get("message") or "") if isinstance(value, dict) else ""
    said = (said or body.decode("utf-8", "replace")).strip()[:_QUOTED_CHARACTERS]
    told = f": {said}" if said else " without saying why."
    message = f"The model's server answered {reply.status} to {request.path}{told}"
    retry = reply.headers.get(hdrs.RETRY_AFTER)
    return GatewayError(
        status, "upstream_error", message, headers={hdrs.RETRY_AFTER: retry} if retry else None
    )


async def _relay_events(
    request: web.Request, reply: aiohttp.ClientResponse, events: EventStream
) -> web.StreamResponse:
    headers = to_client(reply.headers)
    headers.setdefault(hdrs.CACHE_CONTROL, "no-cache")
    headers["X-Accel-Buffering"] = "no"
    response = web.StreamResponse(status=reply.status, headers=headers)
    await response.prepare(request)
    going_on = True
    while going_on:
        piece, going_on = await _next_piece(reply, events)
        if piece:
            await _send(request, response, piece)
    await response.write_eof()
    return response


async def _send(request: web.Request, response: web.StreamResponse, piece: bytes) -> None:
    """Send a piece; drop a client that takes nothing for too long, since it holds a place at the upstream."""
    transport = request.transport
    if transport is not None and len(piece) <= _NEVER_WAITS_BYTES and not transport.get_write_buffer_size():
        await response.write(piece)
        return
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await response.write(piece)
    except TimeoutError as error:
        if transport is not None:
            transport.abort()
        raise ConnectionResetError("the client stopped reading") from error


async def _next_piece(reply: aiohttp.ClientResponse, events: EventStream) -> tuple[bytes, bool]:
    """Return what can be sent on now, and whether more may come; an upstream's fault becomes the last event."""
    try:
        chunk = await reply.content.readany()
        if chunk:
            return events.feed(chunk), True
        rest = events.rest()
    except EventTooLargeError:
        reply.close()
        message = "The model's server sent an event that is too large; the stream ends here."
        return _event(error_body(502, "event_too_large", message)), False
    except (aiohttp.ClientError, TimeoutError) as error:
        fault = fault_of(error)
        log.warning("stream_broken", address=str(reply.url.authority), code=fault.code, why=str(error))
        return _event(fault.body()), False
    if not events.finished and not _framed(reply):
        return rest + _event(fault_of(aiohttp.ClientPayloadError()).body()), False
    return rest, False


def _framed(reply: aiohttp.ClientResponse) -> bool:
    """Tell whether the body's end is marked; otherwise a torn stream looks like a finished one."""
    return (
        hdrs.CONTENT_LENGTH in reply.headers
        or "chunked" in reply.headers.get(hdrs.TRANSFER_ENCODING, "").lower()
    )


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
