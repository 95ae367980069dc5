"""The proxy as a process: takes its port, says so, serves until told to stop or replaced, and always ends.

The first SIGTERM or SIGINT stops listening and gives requests under way up to 30 s; a second one ends them at once.
The port comes from systemd where that keeps it, from the running proxy with ``takeover``, else it is bound here.
"""

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from gpupool.core.errors import InvalidInputError, PortTakenError, UnsupportedError
from gpupool.core.home import Home
from gpupool.core.ids import new_id
from gpupool.core.listening import bind, stop_signal
from gpupool.core.logging import set_up_logging
from gpupool.core.open_files import allow_most, connections_within
from gpupool.core.standard_streams import log_descriptor
from gpupool.recompute.addresses import format_address
from gpupool.recompute.proxy.channels import AVAILABLE, Channel
from gpupool.recompute.proxy.compiled import in_use
from gpupool.recompute.proxy.door import Door, LocalListener
from gpupool.recompute.proxy.handover import Handover, handover_path, leave_to
from gpupool.recompute.proxy.local_socket import listen_at_path
from gpupool.recompute.proxy.operations import Operations
from gpupool.recompute.proxy.proxying import ProxyCore
from gpupool.recompute.proxy.requestlog import RequestLog
from gpupool.recompute.proxy.settings import ProxySettings
from gpupool.recompute.proxy.sources import NodesFile, take_feed, wishes_of_arguments
from gpupool.recompute.proxy.systemd import Kept, Notifier, Store, forget_clients, kept_for_us
from gpupool.recompute.proxy.takeover import Takeover, adopt_client, ask_for_socket
from gpupool.recompute.proxy.watching import NodeWatch, is_own_address
from gpupool.recompute.server.ending import end_within

if TYPE_CHECKING:
    from gpupool.contracts.feed_client import FeedFollower

ROLE: Final = "recompute proxy"
VARIABLES: Final = "GPUPOOL_PROXY"
_END_SECONDS: Final = 5.0
"""For writing the history and closing what is open, after the last answer; a disk may hang."""
_YOUNG_OBJECTS: Final = 5000
"""New containers after which the collector looks at them; Python's own 700 are there with each burst of requests."""
log = structlog.get_logger(__name__)
_Job = Coroutine[Any, Any, None]


@dataclass(slots=True)
class Start:
    """What a proxy starts with: its settings, the listening sockets (one of both at least), and what came with them."""

    settings: ProxySettings
    listener: socket.socket | None
    local: LocalListener | None = None
    before: Takeover | None = None
    clients: list[tuple[str, int]] = field(default_factory=list)


def run(settings: ProxySettings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``say`` gets the lines that operators know from the original program.

    Raises InvalidInputError for nodes that are none, PortTakenError and other errors of `core.errors`.
    """
    wishes = wishes_of_arguments(settings.nodes)
    start = _start(settings, say)
    with contextlib.ExitStack() as held:
        if start.listener is not None:
            held.callback(start.listener.close)
        if start.local is not None:
            held.callback(start.local.close)
        for wish in wishes:
            say(f"Node: {wish.host} (port {wish.port})")
        set_up_logging("recompute-proxy", settings.log_level)
        # Each lookup takes one descriptor for the client and one for a server.
        connections = connections_within(allow_most(), start.settings.connections, each=2)
        start.settings = replace(start.settings, connections=connections)
        with (
            asyncio.Runner(loop_factory=_loop_factory()) as runner,
            contextlib.suppress(asyncio.CancelledError),
        ):
            runner.run(_serve(start, say))


def _start(settings: ProxySettings, say: Callable[[str], None]) -> Start:
    kept = kept_for_us()
    if kept.listener is not None or kept.local is not None:
        return _start_with(kept, settings)
    if settings.takeover:
        before = _take_over(settings)
        if before is not None:
            return Start(settings, before.listener, _local(settings, replacing=True), before)
        say("No proxy of ours listens there yet: nothing to take over.")
    local = _local(settings)
    try:
        return Start(settings, listen(settings) if settings.tcp else None, local)
    except BaseException:
        if local is not None:
            local.close()
        raise


def _start_with(kept: Kept, settings: ProxySettings) -> Start:
    """Take the sockets that systemd keeps, in place of those that options name."""
    listener, local = kept.listener, _local(settings, kept.local)
    if listener is None and settings.tcp and settings.unix is not None:
        # Both were asked for, and systemd keeps one of them.
        listener = listen(settings)
    settings = replace(settings, tcp=listener is not None, unix=None if local is None else local.path)
    if listener is not None:
        host, port = listener.getsockname()[:2]
        settings = replace(settings, host=str(host), port=int(port))
    return Start(settings, listener, local, clients=kept.clients)


def _local(
    settings: ProxySettings, kept: socket.socket | None = None, *, replacing: bool = False
) -> LocalListener | None:
    if kept is not None:
        return LocalListener.at(kept, Path(kept.getsockname()), lent=True)
    if settings.unix is None:
        return None
    return LocalListener.at(listen_at_path(settings.unix, replacing=replacing), settings.unix)


def _take_over(settings: ProxySettings) -> Takeover | None:
    if not AVAILABLE:
        raise UnsupportedError(
            "Taking the listening socket over from a running proxy is not available on this system, only on Linux.",
            remedy="Run a second proxy on another address, name both in the harvesters' list, and restart them in turn.",
        )
    if settings.port == 0 or not settings.tcp:
        raise InvalidInputError(
            "A takeover needs the port of the running proxy.", remedy="Name it with -p next to --takeover."
        )
    address = (settings.host, settings.port)
    return ask_for_socket(handover_path(address), address)


def listen(settings: ProxySettings) -> socket.socket:
    """Return the listening socket; a taken port is told with its holder and what can be done about it."""
    try:
        return bind(f"the {ROLE}", settings.host, settings.port, VARIABLES)
    except PortTakenError as error:
        replace_it = " To replace a running proxy without a gap, add --takeover." if AVAILABLE else ""
        raise PortTakenError(
            error.message,
            remedy=f"Where a recompute server of this host has the port, give the proxy another one with -p and name"
            f" the server with -n localhost:{settings.port}.{replace_it}",
        ) from error


async def _serve(start: Start, say: Callable[[str], None]) -> None:
    stop, notifier = stop_signal(), Notifier()
    async with _standing(start.settings, start.listener, start.local) as (core, door, working):
        adopting = await _begin(start, core, door, notifier)
        _spare_the_collector()
        _say_where(start.settings, core, door, say)
        try:
            while not await _replaced(stop, core, door, {working, *adopting}):
                if stop.is_set():
                    core.inheriting = False
                    end_within(core.settings.drain_seconds + _END_SECONDS)
                    await _stop(core, door, notifier)
                    return
            end_within(_END_SECONDS)
        finally:
            for task in adopting:
                task.cancel()
            if start.before is not None:
                start.before.stopping()


def _say_where(settings: ProxySettings, core: ProxyCore, door: Door, say: Callable[[str], None]) -> None:
    if door.listener is not None:
        host, port = settings.host, door.address[1]
        say(f"ReComputeProxy listening on {host} port {port}")
        log.info(
            "proxy_listening",
            address=format_address((host, port)),
            instance=core.instance_id,
            compiled=in_use(),
        )
    if door.local is not None:
        say(f"ReComputeProxy listening at {door.local.path}")
        log.info("proxy_listening", address=f"unix:{door.local.path}", instance=core.instance_id)


async def _begin_unless(
    stop: asyncio.Event, beginning: Coroutine[Any, Any, set["asyncio.Future[None]"]]
) -> set["asyncio.Future[None]"] | None:
    """Return what ``beginning`` does; None where ``stop`` comes first: the proxy that was asked to leave serves on."""
    task, stopping = asyncio.ensure_future(beginning), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopping.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)


async def _begin(
    start: Start, core: ProxyCore, door: Door, notifier: Notifier
) -> set["asyncio.Future[None]"]:
    """Open the door and take the clients that others have left; return the job that still takes some."""
    adopting: set[asyncio.Future[None]] = set()
    if start.before is None:
        await door.open()
    else:
        await start.before.claim(core, door)
        adopting.add(asyncio.ensure_future(start.before.adopt(core)))
    for speech, descriptor in start.clients:
        await adopt_client(core, speech, descriptor)
    forget_clients(notifier)
    notifier.tell("READY=1")
    return adopting


async def _replaced(
    stop: asyncio.Event, core: ProxyCore, door: Door, jobs: set["asyncio.Future[None]"]
) -> bool:
    """Serve until told to stop (False) or replaced (True, and nothing is left to do); False also if that failed."""
    handover = Handover(door, handover_path((core.settings.host, door.address[1])))
    if door.listener is not None:
        handover.begin()
    stopping = asyncio.ensure_future(stop.wait())
    successor: asyncio.Future[Channel] = asyncio.ensure_future(handover.successor())
    own: set[asyncio.Future[Any]] = {stopping, successor}
    try:
        while not (stopping.done() or successor.done()):
            await asyncio.wait(own | jobs, return_when=asyncio.FIRST_COMPLETED)
            for job in [job for job in jobs if job.done()]:
                jobs.remove(job)
                job.result()
        return successor.done() and await leave_to(successor.result(), core, door)
    finally:
        handover.close()
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)


async def _stop(core: ProxyCore, door: Door, notifier: Notifier) -> None:
    log.info("proxy_stopping", seconds=core.settings.drain_seconds)
    door.shut()
    notifier.tell("STOPPING=1")
    core.heir = Store(notifier) if notifier.listens else None
    if not await core.drain(core.settings.drain_seconds):
        log.warning("proxy_gave_up_requests", seconds=core.settings.drain_seconds)
    notifier.flush()


@contextlib.asynccontextmanager
async def running(
    settings: ProxySettings, listener: socket.socket | None, local: LocalListener | None = None
) -> AsyncIterator[tuple[ProxyCore, "asyncio.Future[None]"]]:
    """Serve the listeners for as long as the block lasts, then drain; give also what ends only by a fault."""
    async with _standing(settings, listener, local) as (core, door, working):
        await door.open()
        yield core, working
        await _stop(core, door, Notifier())


@contextlib.asynccontextmanager
async def _standing(
    settings: ProxySettings, listener: socket.socket | None, local: LocalListener | None = None
) -> AsyncIterator[tuple[ProxyCore, Door, "asyncio.Future[None]"]]:
    """Give a proxy with its nodes watched and its door still shut, for as long as the block lasts."""
    core = ProxyCore(
        settings,
        new_id("inst"),
        request_log=RequestLog(log_descriptor(), enabled=settings.log_level in {"DEBUG", "INFO"}),
    )
    door = Door(core, listener, local)
    try:
        working = asyncio.ensure_future(_all(await _jobs(core, door.address[1])))
    except BaseException:
        door.close()
        raise
    try:
        yield core, door, working
    finally:
        door.close()
        core.close()
        await core.judge.close()
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
    operations = Operations(core, port)
    if settings.tcp:
        core.border.warn_if_open(settings.host)
    wishes = wishes_of_arguments(settings.nodes, settings.trust)
    for wish in wishes:
        if wish.port == port and await is_own_address(wish.host, settings.host):
            raise InvalidInputError(
                f"The node {wish.name} is this proxy itself.",
                remedy="Give the proxy another port with -p, or name the server's real address with -n.",
            )
        if wish.trust is not None:
            core.keyring.check(wish.trust)
    core.directory.replace("arguments", wishes)
    # Each is called only when all are made: a coroutine that an error leaves behind would warn on the terminal.
    runs: list[Callable[[], _Job]] = [core.tick, NodeWatch(core, port).run, operations.run]
    if settings.nodes_file is not None:
        runs.append(NodesFile(settings.nodes_file, core.directory).run)
    if settings.control_url is not None:
        follower = _follower(core, settings.control_url)
        core.control_trouble = lambda: follower.trouble
        runs.append(follower.run)
    return [run() for run in runs]


def _follower(core: ProxyCore, control_url: str) -> "FeedFollower":
    from gpupool.contracts.feed_client import FeedFollower
    from gpupool.fleet.workloads import Protocol

    token_file: Path = core.settings.token_file or Home.from_environment().service_token
    return FeedFollower(
        control_url, Protocol.RECOMPUTE, token_file, on_view=lambda view: take_feed(view, core.directory)
    )


def _spare_the_collector() -> None:
    """Tell the collector of garbage that all there is now stays, and that requests leave next to nothing behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 20)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the faster event loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
