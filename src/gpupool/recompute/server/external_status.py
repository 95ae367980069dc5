"""One port for somebody else's server and for what is known of it: frames pass, HTTP is answered here.

The pool can place, probe and list such a server like one of ours, and a proxy that finds it in control's feed learns
from its answer that it carries frames only.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from gpupool import __version__
from gpupool.contracts.bad_heads import connections, has_place
from gpupool.contracts.recompute import (
    PROOFS_PATH,
    QUALITIES_PATH,
    SERVER_PATH,
    ExternalView,
    QueueView,
    RecomputeDevice,
    RecomputeServerView,
)
from gpupool.core.errors import UnavailableError, UnsupportedError
from gpupool.recompute.server.doorway import Doorway
from gpupool.recompute.server.passage import Passage
from gpupool.recompute.server.problems import name_request, refuse_head, with_problems

_HEAD_SECONDS: Final = 10.0
_CONNECTIONS: Final = 2000


class ExternalDownError(UnavailableError):
    """The program that is kept here does not listen now."""

    code = "external_down"
    default_remedy = "Wait, it is started again; its output and the log of its keeper say why it ended."


class ExternalStatus:
    """What HTTP is answered."""

    def __init__(self, instance_id: str, view: Callable[[], ExternalView], passage: Passage) -> None:
        self._instance_id, self._view, self._passage = instance_id, view, passage

    def application(self) -> web.Application:
        """Return the application that answers."""
        app = web.Application(middlewares=[with_problems])
        app.on_response_prepare.append(name_request)
        app.add_routes(
            [
                web.get(SERVER_PATH, self._show_server),
                web.get("/healthz", self._show_health),
                web.get("/readyz", self._show_readiness),
                web.post(PROOFS_PATH, self._refuse),
                web.post(QUALITIES_PATH, self._refuse),
            ]
        )
        return app

    async def _show_server(self, request: web.Request) -> web.Response:
        known = self._view()
        view = RecomputeServerView(
            instance_id=self._instance_id,
            version=__version__,
            state="ready" if known.listening else "starting",
            k=[],
            levels=[],
            devices=[
                RecomputeDevice(
                    kind="cpu" if device.engine.startswith("CPU") else "gpu",
                    name=device.name,
                    engine=device.engine,
                    workers=1,
                )
                for device in known.devices
            ],
            rates=[],
            queue=QueueView(running=self._passage.open, waiting=0, room=0),
            external=known,
        )
        # The headers of a proxy: as one does, this passes frames on.
        headers = {"X-Gpupool-Proxy": self._instance_id, "X-Gpupool-Kinds": "frames"}
        return web.Response(
            body=view.model_dump_json().encode(), content_type="application/json", headers=headers
        )

    async def _show_health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "status": "ok",
                "role": "recompute-external",
                "instance_id": self._instance_id,
                "version": __version__,
            }
        )

    async def _show_readiness(self, request: web.Request) -> web.Response:
        known = self._view()
        if not known.listening:
            raise ExternalDownError(
                f"{known.program} does not listen now{f': {known.why}' if known.why else ''}."
            )
        return web.json_response({"status": "ready", "instance_id": self._instance_id})

    async def _refuse(self, request: web.Request) -> web.Response:
        raise UnsupportedError(
            "Behind this port is a Gigahorse server, which takes its own clients' frames and no HTTP.",
            remedy="Ask a gpupool recompute server, or a proxy that has one.",
        )


@asynccontextmanager
async def one_port(listener: socket.socket, status: ExternalStatus, passage: Passage) -> AsyncIterator[None]:
    """Serve ``listener`` for as long as the block lasts."""
    runner = web.AppRunner(status.application(), shutdown_timeout=0.5)
    await runner.setup()
    http = runner.server
    doorway = Doorway(
        listener,
        connections(http, refuse_head, access_log=None, keepalive_timeout=_HEAD_SECONDS),
        None,
        frames=passage.protocol,
        head_seconds=_HEAD_SECONDS,
        has_room=lambda: has_place(http, _CONNECTIONS),
    )
    accepting = asyncio.create_task(doorway.run())
    try:
        yield
    finally:
        accepting.cancel()
        await asyncio.wait({accepting})
        await runner.cleanup()
