"""The outermost layer: names each request, counts it, and turns what the inner layers refuse into an answer."""

import re
import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpupool.control.http.limits import check_head
from gpupool.control.http.metrics import Metrics
from gpupool.control.http.problems import note_refusal, problem_response
from gpupool.core.errors import GpupoolError
from gpupool.core.ids import new_id

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,100}")


class Boundary:
    """ASGI layer around everything else."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope["gpupool.request_id"] = _request_id(scope)
        status = 500
        begun = time.perf_counter()
        self._metrics.open_requests.inc()

        async def named_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # A new list: a kept answer is sent many times, each under another id.
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            check_head(scope)
            await self._app(scope, receive, named_send)
        except GpupoolError as error:
            status = error.status
            note_refusal(scope, error)
            await problem_response(error, request_id, {"Connection": "close"})(scope, receive, named_send)
        finally:
            self._metrics.open_requests.dec()
            self._metrics.count(scope, status, time.perf_counter() - begun)


def _request_id(scope: Scope) -> str:
    """Return the caller's id where it is a sound one, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return new_id("req")
