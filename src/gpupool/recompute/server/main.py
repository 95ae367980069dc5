"""The recompute server as a process: checks its port, listens, tests itself, then takes requests until told to stop.

It listens before numba is even imported, so that whoever started it can watch it come up: `/healthz` answers at
once, `/readyz` when every kernel is compiled and a known proof was recovered. The first SIGTERM or SIGINT lets work
in progress end, a second one does not wait.
"""

import asyncio
import errno
import os
import platform
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from gpupool.core.errors import EnvironmentProblemError, GpupoolError, PortTakenError
from gpupool.core.files import ensure_private_dir
from gpupool.core.ids import new_id
from gpupool.core.logging import set_up_logging
from gpupool.core.ports import port_is_free
from gpupool.recompute.server.app import RecomputeServer
from gpupool.recompute.server.engine import Engine
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.server.work import WorkQueue

ROLE: Final = "recompute"
KERNEL_CACHE: Final = "NUMBA_CACHE_DIR"
log = structlog.get_logger(__name__)


def run(settings: RecomputeServerSettings) -> None:
    """Serve until SIGTERM or SIGINT; raise PortTakenError and other errors of `core.errors` before listening."""
    if find_spec("numba") is None:
        raise EnvironmentProblemError(
            "Recompute needs numba, which is not installed.",
            remedy="Install it: pip install 'gpupool[recompute]'.",
        )
    _check_port(settings)
    if not os.environ.get(KERNEL_CACHE):
        os.environ[KERNEL_CACHE] = str(ensure_private_dir(settings.kernel_cache))
    set_up_logging(ROLE, settings.log_level)
    with suppress(asyncio.CancelledError):
        asyncio.run(_serve(settings))


async def _serve(settings: RecomputeServerSettings) -> None:
    instance_id = settings.instance_id or new_id("inst")
    stop = _stop_signal()
    async with listening(settings, instance_id) as (server, port):
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
    settings: RecomputeServerSettings, instance_id: str
) -> AsyncIterator[tuple[RecomputeServer, int]]:
    """Listen for as long as the block lasts; give the server, which has no engine yet, and the port.

    At the end no new request is taken, and work in progress gets ``recompute_drain_seconds``. Raises PortTakenError
    where the port cannot be had.
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
        await _start(web.TCPSite(runner, settings.recompute_host, settings.recompute_port), settings)
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


def _check_port(settings: RecomputeServerSettings) -> None:
    """See a taken port before anything is made or started."""
    try:
        free = not settings.recompute_port or port_is_free(settings.recompute_port, settings.recompute_host)
    except OSError as error:
        raise _cannot_listen(settings, error) from error
    if not free:
        raise _taken(settings)


async def _start(site: web.TCPSite, settings: RecomputeServerSettings) -> None:
    try:
        await site.start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _taken(settings) from error
        raise _cannot_listen(settings, error) from error


def _taken(settings: RecomputeServerSettings) -> PortTakenError:
    return PortTakenError(
        f"Port {settings.recompute_port} on {settings.recompute_host}, wanted by the recompute server, is taken.",
        remedy="Free it, or choose another one with --port or GPUPOOL_RECOMPUTE_PORT.",
    )


def _cannot_listen(settings: RecomputeServerSettings, error: OSError) -> EnvironmentProblemError:
    return EnvironmentProblemError(
        f"The recompute server cannot listen on {settings.recompute_host}:{settings.recompute_port}: "
        f"{error.strerror}.",
        remedy="Give an address of this machine with --host.",
    )


def _stop_signal() -> asyncio.Event:
    """Return an event that the first signal to stop sets; the second one cancels the caller's task."""
    stop, task, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()

    def received() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received)
    return stop


def _processor_name() -> str:
    """Return the processor's name as the kernel tells it, else its architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
