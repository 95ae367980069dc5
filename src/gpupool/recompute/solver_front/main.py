"""The solver front as a process: takes its ports, says who it is, serves until told to stop, and always ends.

The first SIGTERM or SIGINT ends listening; partial proofs under way get their time. A second one does not wait.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

import structlog
from aiohttp import web

from gpupool.contracts.bad_heads import connections
from gpupool.core.errors import GpupoolError
from gpupool.core.home import Home
from gpupool.core.listening import bind, stop_signal
from gpupool.core.logging import set_up_logging
from gpupool.recompute.credentials import is_loopback
from gpupool.recompute.proxy.sources import NodesFile, take_feed, wishes_of_arguments
from gpupool.recompute.server.doorway import Doorway
from gpupool.recompute.server.ending import GRACE_SECONDS, end_within
from gpupool.recompute.solver_front.admin import AdminPages
from gpupool.recompute.solver_front.farmers import MOST_CONNECTIONS
from gpupool.recompute.solver_front.front import Front
from gpupool.recompute.solver_front.identity import Identity
from gpupool.recompute.solver_front.settings import FrontSettings

ROLE: Final = "solver front"
VARIABLES: Final = "GPUPOOL_SOLVER"
_HEAD_SECONDS: Final = 10.0
"""For the first bytes of a connection, and for the TLS handshake."""
_CLOSE_SECONDS: Final = 2.0
log = structlog.get_logger(__name__)
_Job = Coroutine[Any, Any, None]


def run(settings: FrontSettings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``say`` gets the lines for people. Raises errors of `core.errors` before that."""
    wishes_of_arguments(settings.nodes, settings.trust)
    identity = Identity.load_or_make(Home.from_environment().keys)
    with (
        bind(f"the {ROLE}", settings.host, settings.port, VARIABLES) as listener,
        bind(f"the {ROLE}'s own pages", "127.0.0.1", settings.admin_port, f"{VARIABLES}_ADMIN") as pages,
    ):
        set_up_logging("solver-front", settings.log_level)
        with (
            asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner,
            suppress(asyncio.CancelledError),
        ):
            runner.run(_serve(settings, identity, listener, pages, say))


async def _serve(
    settings: FrontSettings,
    identity: Identity,
    listener: socket.socket,
    pages: socket.socket,
    say: Callable[[str], None],
) -> None:
    stop = stop_signal()
    async with standing(settings, identity, listener, pages) as (front, working):
        say(f"SolverFront listening on {settings.host} port {front.port}")
        say(f"Node id: {identity.node_id}")
        say(f"Pages for you: http://127.0.0.1:{pages.getsockname()[1]}/v1/front")
        _warn(front)
        stopping = asyncio.ensure_future(stop.wait())
        awaited: set[asyncio.Future[Any]] = {stopping, working}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if working.done():
            working.result()
        end_within(settings.drain_seconds + GRACE_SECONDS + _CLOSE_SECONDS)
        log.info("solver_front_stopping", seconds=settings.drain_seconds, running=front.solutions.under_way)


@asynccontextmanager
async def standing(
    settings: FrontSettings, identity: Identity, listener: socket.socket, pages: socket.socket
) -> AsyncIterator[tuple[Front, "asyncio.Future[None]"]]:
    """Serve both sockets for as long as the block lasts, then drain; give also what ends only by a fault."""
    front = Front(settings, identity, int(listener.getsockname()[1]))
    front.checker.warm_up()
    front.directory.replace("arguments", wishes_of_arguments(settings.nodes, settings.trust))
    async with AsyncExitStack() as stack:
        working = asyncio.ensure_future(_all(_jobs(front)))
        stack.push_async_callback(_end, working)
        await stack.enter_async_context(_pages(front, pages))
        await stack.enter_async_context(_farmers(front, listener))
        yield front, working
        # Leaving, in the order of entering turned round: nobody new, then those who wait, then the pages.


@asynccontextmanager
async def _farmers(front: Front, listener: socket.socket) -> AsyncIterator[None]:
    runner = web.AppRunner(front.application(), shutdown_timeout=_CLOSE_SECONDS)
    await runner.setup()
    http = runner.server
    if http is None:
        raise GpupoolError("The HTTP server was not set up.")
    context = front.identity.context()
    doorway = Doorway(
        listener,
        connections(http, lambda status, text: web.Response(status=status, text=text), access_log=None),
        lambda: context,
        head_seconds=_HEAD_SECONDS,
        has_room=lambda: len(http.connections) < 2 * MOST_CONNECTIONS,
    )
    accepting = asyncio.create_task(doorway.run())
    try:
        yield
    finally:
        accepting.cancel()
        await asyncio.wait({accepting})
        await front.drain()
        await runner.cleanup()


@asynccontextmanager
async def _pages(front: Front, pages: socket.socket) -> AsyncIterator[None]:
    runner = web.AppRunner(AdminPages(front).application(), access_log=None, shutdown_timeout=_CLOSE_SECONDS)
    await runner.setup()
    try:
        await web.SockSite(runner, pages).start()
        yield
    finally:
        await runner.cleanup()


def _jobs(front: Front) -> list[_Job]:
    """Return what keeps the list of workers true."""
    settings = front.settings
    runs: list[Callable[[], _Job]] = [front.workers.run]
    if settings.nodes_file is not None:
        runs.append(NodesFile(settings.nodes_file, front.directory).run)
    if settings.control_url is not None:
        from gpupool.contracts.feed_client import FeedFollower
        from gpupool.fleet.workloads import Protocol

        token_file = settings.control_token_file or Home.from_environment().service_token
        runs.append(
            FeedFollower(
                settings.control_url,
                Protocol.RECOMPUTE,
                token_file,
                on_view=lambda view: take_feed(view, front.directory),
            ).run
        )
    return [run() for run in runs]


async def _all(jobs: list[_Job]) -> None:
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(job)


async def _end(working: "asyncio.Future[None]") -> None:
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


def _warn(front: Front) -> None:
    settings = front.settings
    if not front.checker.sees_quality:
        log.warning(
            "answers_checked_by_length_only",
            what_to_do=f"Install the farmers' release here to have their quality checked: pip install"
            f" chia_rs=={settings.release}",
        )
    if not len(front.allow) and not is_loopback(settings.host):
        log.warning(
            "no_farmer_allowed",
            what_to_do="Only farmers on this machine may ask. The log names the node id of each other one that tries;"
            " add it with --allow, or as a line in --allow-file.",
        )
