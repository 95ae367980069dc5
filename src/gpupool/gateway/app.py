"""The gateway's HTTP surface: OpenAI's routes, and what every process of the pool shows of itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from aiohttp import hdrs, web

from gpupool import __version__
from gpupool.contracts.control import Health
from gpupool.gateway.access import OPEN_PATHS, KeyCheck
from gpupool.gateway.faults import GatewayError, from_http_exception
from gpupool.gateway.forwarding import Forwarder
from gpupool.gateway.headers import REQUEST_ID, request_id_of
from gpupool.gateway.metrics import Metrics
from gpupool.gateway.reading import MAX_BODY_BYTES, OFFERS, read_call
from gpupool.gateway.routing import Router

FORWARDED: Final = tuple(OFFERS)
_ID: Final = web.RequestKey("request_id", str)
_CLIENT_LEFT: Final = 499
log = structlog.get_logger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateway:
    """One gateway: its routes over a router, a forwarder and its metrics."""

    def __init__(
        self,
        router: Router,
        forwarder: Forwarder,
        metrics: Metrics,
        keys: KeyCheck,
        instance_id: str,
        body_seconds: float,
    ) -> None:
        """``body_seconds``: how long a request's body may take."""
        self._router = router
        self._forwarder = forwarder
        self._metrics = metrics
        self._keys = keys
        self._body_seconds = body_seconds
        self._health = Health(role="gateway", instance_id=instance_id, version=__version__).model_dump_json()
        self._under_way: set[asyncio.Task[object]] = set()

    def application(self) -> web.Application:
        """Return the application that serves this gateway."""
        app = web.Application(middlewares=[_with_faults, self._with_key], client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(_sign)
        app.add_routes([web.post(path, self._call) for path in FORWARDED])
        app.add_routes(
            [
                web.get("/v1/models", self._list_models),
                web.get("/v1/models/{model:.+}", self._show_model),
                web.get("/healthz", self._show_health),
                web.get("/readyz", self._show_readiness),
                web.get("/metrics", self._show_metrics),
            ]
        )
        return app

    async def drain(self, seconds: float) -> None:
        """Let the calls under way end for ``seconds``, then cancel the rest."""
        if not self._under_way:
            return
        _, late = await asyncio.wait(self._under_way, timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    async def _call(self, request: web.Request) -> web.StreamResponse:
        began, model, status = time.perf_counter(), "unknown", _CLIENT_LEFT
        task = asyncio.current_task()
        if task is not None:
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        try:
            call = await read_call(request, self._body_seconds)
            if self._router.knows(call.model):
                model = call.model
            response = await self._forwarder.forward(
                request, call, request[_ID], lambda: self._metrics.head(model, time.perf_counter() - began)
            )
            status = response.status
        except GatewayError as fault:
            status = fault.status
            log.info("request_failed", model=model, status=status, code=fault.code, request_id=request[_ID])
            raise
        finally:
            self._metrics.ended(model, status, time.perf_counter() - began)
        return response

    async def _list_models(self, request: web.Request) -> web.Response:
        if not self._router.ready:
            raise self._router.absence("")
        models = [_model_object(model, born) for model, born in self._router.models().items()]
        return web.json_response({"object": "list", "data": models})

    async def _show_model(self, request: web.Request) -> web.Response:
        model = request.match_info["model"]
        born = self._router.models().get(model)
        if born is None:
            raise self._router.absence(model)
        return web.json_response(_model_object(model, born))

    async def _show_health(self, request: web.Request) -> web.Response:
        return web.Response(text=self._health, content_type="application/json")

    async def _show_readiness(self, request: web.Request) -> web.Response:
        if self._router.ready:
            return web.json_response({"status": "ready"})
        why = "The gateway has not yet read a complete view of the endpoints feed from control."
        return web.json_response({"status": "not ready", "why": why}, status=503)

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    @web.middleware
    async def _with_key(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS:
            self._keys.admit(request.headers)
        return await handler(request)


@web.middleware
async def _with_faults(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Name the request, and let every fault leave in OpenAI's shape."""
    request[_ID] = request_id_of(request.headers)
    try:
        return await handler(request)
    except GatewayError as fault:
        return fault.response()
    except web.HTTPException as error:
        return from_http_exception(error, request.method, request.path, FORWARDED).response()


async def _sign(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Put the request's id on every answer, and no versions of what serves it."""
    response.headers[hdrs.SERVER] = "gpupool"
    given = request.get(_ID)
    if given is not None:
        response.headers[REQUEST_ID] = given


def _model_object(model: str, born: int) -> dict[str, str | int]:
    return {"id": model, "object": "model", "created": born, "owned_by": "gpupool"}
