"""The recompute server as a process: checks its port, listens, tests itself, then takes requests until told to stop.

It listens before numba is even imported, so that whoever started it can watch it come up: `/healthz` answers at
once, `/readyz` when every kernel is compiled and a known proof was recovered. The first SIGTERM or SIGINT lets work
in progress end, a second one does not wait.
"""

import asyncio
import os
import platform
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from gpupool.core.errors import EnvironmentProblemError, GpupoolError
from gpupool.core.files import ensure_private_dir
from gpupool.core.ids import new_id
from gpupool.core.listening import BACKLOG, bind, stop_signal
from gpupool.core.logging import set_up_logging
from gpupool.recompute.server.app import RecomputeServer
from gpupool.recompute.server.engine import Engine
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.server.work import WorkQueue

ROLE: Final = "recompute"
VARIABLES: Final = "GPUPOOL_RECOMPUTE"
KERNEL_CACHE: Final = "NUMBA_CACHE_DIR"
log = structlog.get_logger(__name__)


def run(settings: RecomputeServerSettings) -> None:
    """Serve until SIGTERM or SIGINT; raise PortTakenError and other errors of `core.errors` before listening."""
    if find_spec("numba") is None:
        raise EnvironmentProblemError(
            "Recompute needs numba, which is not installed.",
            remedy="Install it: pip install 'gpupool[recompute]'.",
        )
    with bind(f"the {ROLE} server", settings.recompute_host, settings.recompute_port, VARIABLES) as listener:
        if not os.environ.get(KERNEL_CACHE):
            os.environ[KERNEL_CACHE] = str(ensure_private_dir(settings.kernel_cache))
        set_up_logging(ROLE, settings.log_level)
        with suppress(asyncio.CancelledError):
            asyncio.run(_serve(settings, listener))


async def _serve(settings: RecomputeServerSettings, listener: socket.socket) -> None:
    instance_id = settings.instance_id or new_id("inst")
    stop = stop_signal()
    async with listening(settings, instance_id, listener) as (server, port):
        log.info("recompute_listening", host=settings.recompute_host, port=port, instance=instance_id)
        preparing = asyncio.create_task(_prepare(server))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if preparing.done():
                preparing.result()
            await stopping
            log.info("recompute_stopping", seconds=settings.recompute_drain_seconds)
        finally:
            preparing.cancel()
            stopping.cancel()


@asynccontextmanager
async def listening(
    settings: RecomputeServerSettings, instance_id: str, listener: socket.socket
) -> AsyncIterator[tuple[RecomputeServer, int]]:
    """Serve ``listener`` for as long as the block lasts; give the server, which has no engine yet, and the port.

    At the end no new request is taken, and work in progress gets ``recompute_drain_seconds``.
    """
    queue = WorkQueue(settings.recompute_threads, settings.recompute_queue_room)
    server = RecomputeServer(
        queue, instance_id, deadline_ms=settings.recompute_deadline_ms, device_name=_processor_name()
    )
    runner = web.AppRunner(
        server.application(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=1.0,
        keepalive_timeout=settings.recompute_idle_seconds,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=BACKLOG).start()
        yield server, int(runner.addresses[0][1])
        server.end()
        await queue.drain(settings.recompute_drain_seconds)
    finally:
        queue.close()
        await runner.cleanup()


async def _prepare(server: RecomputeServer) -> None:
    """Give the server its engine once that is compiled and has tested itself."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    ready: asyncio.Future[Engine] = loop.create_future()

    def settle(engine: Engine | None, fault: GpupoolError) -> None:
        if not ready.cancelled():
            ready.set_exception(fault) if engine is None else ready.set_result(engine)

    def work() -> None:
        engine, fault = None, GpupoolError("The recompute engine could not be prepared; its log says why.")
        try:
            from gpupool.recompute.server.numba_engine import checked_engine

            engine = checked_engine()
        except GpupoolError as error:
            fault = error
        finally:
            with suppress(RuntimeError):  # the loop is closed: the process ended while this still compiled
                loop.call_soon_threadsafe(settle, engine, fault)

    # A daemon, so that a stop does not wait for the compiler.
    threading.Thread(target=work, name="prepare", daemon=True).start()
    server.begin(await ready)
    log.info("recompute_ready", seconds=round(loop.time() - began, 1))


def _processor_name() -> str:
    """Return the processor's name as the kernel tells it, else its architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
