"""The operator's pages of the front, on a loopback port of their own: health, metrics, and how everything stands."""

from aiohttp import web

from gpupool.recompute.solver_front.front import Front


class AdminPages:
    """The pages ``/healthz``, ``/readyz``, ``/metrics`` and ``/v1/front``."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def application(self) -> web.Application:
        """Return what serves them."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._show_health),
                web.get("/readyz", self._show_readiness),
                web.get("/metrics", self._show_metrics),
                web.get("/v1/front", self._show_everything),
            ]
        )
        return app

    async def _show_health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"status": "ok", "role": "solver-front", "instance_id": self._front.instance_id}
        )

    async def _show_readiness(self, request: web.Request) -> web.Response:
        state = self._front.state
        return web.json_response({"status": state}, status=200 if state == "ready" else 503)

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._front.counters.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _show_everything(self, request: web.Request) -> web.Response:
        return web.json_response(self._front.view())
