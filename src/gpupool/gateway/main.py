"""The gateway as a process: checks its port, follows the feed, serves until told to stop.

The first SIGTERM or SIGINT stops listening and gives calls under way some seconds; a second one ends them at once.
"""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog
from aiohttp import web

from gpupool.contracts.bad_heads import connections
from gpupool.contracts.feed_client import FeedFollower
from gpupool.core.ids import new_id
from gpupool.core.listening import BACKLOG, bind, stop_signal
from gpupool.core.logging import set_up_logging
from gpupool.core.processes import identify_self
from gpupool.core.records import ProcessRecord
from gpupool.core.tokens import load_or_make_token
from gpupool.fleet.workloads import Protocol
from gpupool.gateway.access import KeyCheck, key_is_required
from gpupool.gateway.app import Gateway
from gpupool.gateway.faults import refuse_head
from gpupool.gateway.forwarding import Forwarder
from gpupool.gateway.metrics import Metrics
from gpupool.gateway.routing import Router
from gpupool.gateway.settings import GatewaySettings
from gpupool.gateway.upstreams import new_session

ROLE: Final = "gateway"
VARIABLES: Final = "GPUPOOL_GATEWAY"
log = structlog.get_logger(__name__)


def run(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT; raise PortTakenError and other errors of `core.errors` before listening."""
    required = key_is_required(settings.gateway_host, settings.gateway_require_key)
    with bind(f"the {ROLE}", settings.gateway_host, settings.gateway_port, VARIABLES) as listener:
        settings.folders.prepare()
        key = load_or_make_token(settings.key_file) if required else None
        set_up_logging(ROLE, settings.log_level)
        _allow_many_connections()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner, suppress(asyncio.CancelledError):
            runner.run(_serve(settings, KeyCheck(key), listener))


async def _serve(settings: GatewaySettings, keys: KeyCheck, listener: socket.socket) -> None:
    instance_id = settings.instance_id or new_id("inst")
    stop = stop_signal()
    async with gateway(settings, keys, instance_id, listener) as (follower, port):
        record = ProcessRecord(
            role=ROLE, instance_id=instance_id, process=identify_self(), host=settings.gateway_host, port=port
        )
        path = record.write(settings.folders.run)
        log.info("gateway_listening", url=record.url, instance=instance_id)
        following = asyncio.create_task(follower.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            log.info("gateway_stopping", seconds=settings.gateway_drain_seconds)
        finally:
            path.unlink(missing_ok=True)
            for task in (following, stopping):
                task.cancel()


@asynccontextmanager
async def gateway(
    settings: GatewaySettings, keys: KeyCheck, instance_id: str, listener: socket.socket
) -> AsyncIterator[tuple[FeedFollower, int]]:
    """Serve ``listener`` for as long as the block lasts; give its follower (not yet running) and the port.

    At the end calls under way get ``drain_seconds``.
    """
    router = Router()
    follower = FeedFollower(
        settings.control_url, Protocol.OPENAI, settings.feed_token_file, on_view=router.update
    )
    silence = settings.gateway_silence_seconds
    async with (
        new_session(silence, keep_connections=True) as kept,
        new_session(silence, keep_connections=False) as fresh,
    ):
        metrics = Metrics(router.outstanding, lambda: follower.trouble is None)
        forwarder = Forwarder(kept, fresh, router)
        serving = Gateway(router, forwarder, metrics, keys, instance_id, settings.gateway_body_seconds)
        runner = web.AppRunner(serving.application(), handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        make_connection = connections(
            runner.server, refuse_head, access_log=None, keepalive_timeout=settings.gateway_idle_seconds
        )
        loop = asyncio.get_running_loop()
        accepting = await loop.create_server(make_connection, sock=listener, backlog=BACKLOG)
        try:
            yield follower, int(listener.getsockname()[1])
            accepting.close()
            await serving.drain(settings.gateway_drain_seconds)
        finally:
            accepting.close()
            await runner.cleanup()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the faster event loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one: each stream under way needs two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
