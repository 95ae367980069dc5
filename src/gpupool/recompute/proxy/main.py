"""The proxy as a process: takes its port, says so, serves until told to stop, and always ends.

The first SIGTERM or SIGINT stops listening and gives requests under way up to 30 s; a second one ends them at once.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from gpupool.core.errors import InvalidInputError, PortTakenError
from gpupool.core.home import Home
from gpupool.core.ids import new_id
from gpupool.core.listening import BACKLOG, bind, stop_signal
from gpupool.core.logging import set_up_logging
from gpupool.recompute.addresses import format_address
from gpupool.recompute.proxy.proxying import ProxyCore
from gpupool.recompute.proxy.requestlog import RequestLog
from gpupool.recompute.proxy.settings import ProxySettings
from gpupool.recompute.proxy.sources import NodesFile, take_feed, wishes_of_arguments
from gpupool.recompute.proxy.watching import NodeWatch, is_own_address

if TYPE_CHECKING:
    from gpupool.contracts.feed_client import FeedFollower

ROLE: Final = "recompute proxy"
VARIABLES: Final = "GPUPOOL_PROXY"
log = structlog.get_logger(__name__)
_Job = Coroutine[Any, Any, None]


def run(settings: ProxySettings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``say`` gets the lines that operators know from the original program.

    Raises InvalidInputError for nodes that are none, PortTakenError and other errors of `core.errors`.
    """
    wishes = wishes_of_arguments(settings.nodes)
    with listen(settings) as listener:
        port = int(listener.getsockname()[1])
        for wish in wishes:
            say(f"Node: {wish.host} (port {wish.port})")
        say(f"ReComputeProxy listening on {settings.host} port {port}")
        set_up_logging("recompute-proxy", settings.log_level)
        _allow_many_connections()
        with (
            asyncio.Runner(loop_factory=_loop_factory()) as runner,
            contextlib.suppress(asyncio.CancelledError),
        ):
            runner.run(_serve(settings, listener))


def listen(settings: ProxySettings) -> socket.socket:
    """Return the listening socket; a taken port is told with its holder and what can be done about it."""
    try:
        return bind(f"the {ROLE}", settings.host, settings.port, VARIABLES)
    except PortTakenError as error:
        raise PortTakenError(
            error.message,
            remedy=f"Where a recompute server of this host has the port, give the proxy another one with -p and name"
            f" the server with -n localhost:{settings.port}.",
        ) from error


async def _serve(settings: ProxySettings, listener: socket.socket) -> None:
    stop = stop_signal()
    async with running(settings, listener) as (core, failure):
        stopping = asyncio.create_task(stop.wait())
        awaited: set[asyncio.Future[Any]] = {stopping, failure}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if failure.done():
            failure.result()
        log.info("proxy_stopping", seconds=core.settings.drain_seconds)


@contextlib.asynccontextmanager
async def running(
    settings: ProxySettings, listener: socket.socket
) -> AsyncIterator[tuple[ProxyCore, "asyncio.Future[None]"]]:
    """Serve ``listener`` for as long as the block lasts, then drain; give also what ends only by a fault."""
    core = ProxyCore(
        settings,
        new_id("inst"),
        request_log=RequestLog(enabled=settings.log_level in {"DEBUG", "INFO"}),
    )
    port = int(listener.getsockname()[1])
    jobs = await _jobs(core, port)
    server = await asyncio.get_running_loop().create_server(core.client, sock=listener, backlog=BACKLOG)
    log.info("proxy_listening", address=format_address((settings.host, port)), instance=core.instance_id)
    working = asyncio.ensure_future(_all(jobs))
    try:
        yield core, working
        server.close()
        if not await core.drain(settings.drain_seconds):
            log.warning("proxy_gave_up_requests", seconds=settings.drain_seconds)
    finally:
        server.close()
        core.close()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


async def _all(jobs: list[_Job]) -> None:
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(job)


async def _jobs(core: ProxyCore, port: int) -> list[_Job]:
    """Take the nodes there are, and return what keeps them true; a node that is this proxy ends the start."""
    settings = core.settings
    wishes = wishes_of_arguments(settings.nodes)
    for wish in wishes:
        if wish.port == port and await is_own_address(wish.host, settings.host):
            raise InvalidInputError(
                f"The node {wish.name} is this proxy itself.",
                remedy="Give the proxy another port with -p, or name the server's real address with -n.",
            )
    core.directory.replace("arguments", wishes)
    jobs: list[_Job] = [core.tick(), NodeWatch(core, port).run()]
    if settings.nodes_file is not None:
        jobs.append(NodesFile(settings.nodes_file, core.directory).run())
    if settings.control_url is not None:
        jobs.append(_follower(core, settings.control_url).run())
    return jobs


def _follower(core: ProxyCore, control_url: str) -> "FeedFollower":
    from gpupool.contracts.feed_client import FeedFollower
    from gpupool.fleet.workloads import Protocol

    token_file: Path = core.settings.token_file or Home.from_environment().service_token
    return FeedFollower(
        control_url, Protocol.RECOMPUTE, token_file, on_view=lambda view: take_feed(view, core.directory)
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the faster event loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one, where there are such limits."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
