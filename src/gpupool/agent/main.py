"""The agent process: wiring, signals and the one lock that keeps a second agent off the same state folder."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from gpupool.agent.backoff import Backoff
from gpupool.agent.client import ControlClient
from gpupool.agent.deadman import DeadMan
from gpupool.agent.inventory import Inventory, read_inventory
from gpupool.agent.journal import Journal
from gpupool.agent.link import Link
from gpupool.agent.settings import AgentSettings
from gpupool.agent.worker import Worker
from gpupool.contracts.alert_file import AlertFile, load_alert_file
from gpupool.core.errors import ConflictError, EnvironmentProblemError, InvalidInputError
from gpupool.core.ids import new_id
from gpupool.core.keys import SigningKey
from gpupool.core.locking import held_alone
from gpupool.core.ports import port_is_free
from gpupool.core.processes import identify_self
from gpupool.core.records import ProcessRecord
from gpupool.notify.courier import Courier
from gpupool.notify.opening import open_notifier
from gpupool.runtimes.process.confinement import Confinement, look
from gpupool.runtimes.process.runtime import ProcessRuntime

_log = structlog.get_logger(__name__)
ROLE: Final = "agent"


def run_agent(settings: AgentSettings) -> None:
    """Run an agent until SIGTERM or SIGINT; the first ends everything in good order, a second one at once.

    Raises ConflictError when an agent already runs on this state folder, InvalidInputError for settings that cannot
    be met.
    """
    _check_listen_host(settings.listen_host)
    home = settings.folders.prepare()
    alerts = load_alert_file(home, settings.alert_urls)
    with _sole_agent(home.agent / "agent.lock"), _recorded(settings):
        asyncio.run(_run(settings, alerts))


def _check_listen_host(host: str) -> None:
    """Raise InvalidInputError where no workload could listen on ``host``."""
    try:
        port_is_free(0, host)
    except OSError as error:
        raise InvalidInputError(
            f"Workloads cannot listen on {host}: {error.strerror}.",
            remedy="Give an address of this machine with --listen (0.0.0.0 is all of them).",
        ) from error


async def _run(settings: AgentSettings, alerts: AlertFile) -> None:
    home = settings.folders
    stop, hurry = _signals()
    inventory = await _inventory(settings, stop)
    if inventory is None:
        return
    wall = Confinement(offer=look(), protected=home.root, readable=settings.readable)
    runtime = ProcessRuntime(settings.runs, home.cache, settings.listen_host, confinement=wall)
    worker = Worker(runtime, Journal.load(home.agent / "journal.json"), inventory)
    key = SigningKey.load_or_make(home.agent / "node.key")
    try:
        await worker.resume()
        async with ControlClient(settings.control_url, key) as client:
            watch = _dead_man(settings, alerts)
            link = Link(settings, client, worker, settings.heartbeat_seconds, watch=watch)
            linked = asyncio.create_task(link.run(), name="link")
            watching = asyncio.create_task(_watch(watch), name="dead man's switch")
            await stop.wait()
            _log.info("stopping")
            watching.cancel()
            await worker.leave(settings.stop_grace_seconds, hurry)
            linked.cancel()
            await asyncio.gather(linked, watching, return_exceptions=True)
            await link.say_goodbye()
    finally:
        await worker.close()
    _log.info("stopped")


def _dead_man(settings: AgentSettings, alerts: AlertFile) -> DeadMan | None:
    """Return what tells of control's death; None where nobody is to be told."""
    couriers = [
        Courier(target.name, open_notifier(**target.way()), on_delivery=lambda done: None)
        for target in alerts.targets
    ]
    if not couriers:
        return None
    return DeadMan(
        settings.control_url,
        settings.node_name,
        60 * alerts.control_silent_minutes,
        couriers,
        settings.folders.agent / "deadman.json",
    )


async def _watch(watch: DeadMan | None) -> None:
    if watch is not None:
        await watch.run()


@contextmanager
def _recorded(settings: AgentSettings) -> Iterator[None]:
    """Keep a process record while the agent runs."""
    record = ProcessRecord(
        role=ROLE, instance_id=settings.instance_id or new_id("inst"), process=identify_self()
    )
    path = record.write(settings.folders.run)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


async def _inventory(settings: AgentSettings, stop: asyncio.Event) -> Inventory | None:
    """Read the devices, again and again while a driver fails; None when told to stop meanwhile."""
    backoff = Backoff()
    while not stop.is_set():
        try:
            return await read_inventory(settings)
        except EnvironmentProblemError as error:
            _log.error("no devices", error=error.message, remedy=error.remedy)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), backoff.next())
    return None


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Return what the first and the second signal set."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def told() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    return stop, hurry


@contextmanager
def _sole_agent(path: Path) -> Iterator[None]:
    """Hold the lock of a state folder; ConflictError where another agent does."""

    def taken() -> ConflictError:
        return ConflictError(
            f"An agent already runs on {path.parent.parent}.",
            remedy="Stop it first, or give this one a state folder of its own with GPUPOOL_HOME.",
        )

    with held_alone(path, taken):
        yield
