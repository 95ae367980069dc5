"""The control process from start to end: port, database, server, reconciler, and a clean way out.

What can fail is tried before anything is started. The only place in control that knows which store is used.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import uvloop

from gpupool.contracts.alert_file import load_alert_file
from gpupool.control.settings import ControlSettings
from gpupool.core.clock import SystemClock
from gpupool.core.errors import ConflictError, StorageError
from gpupool.core.files import read_json
from gpupool.core.home import MOVED, Home
from gpupool.core.ids import new_id
from gpupool.core.listening import bind
from gpupool.core.locking import held_alone
from gpupool.core.logging import set_up_logging
from gpupool.core.open_files import allow_most
from gpupool.core.processes import identify_self
from gpupool.core.records import ProcessRecord

if TYPE_CHECKING:
    from gpupool.control.alerts.desk import AlertDesk
    from gpupool.control.http.guard import Tokens
    from gpupool.control.pool import Pool
    from gpupool.control.serving import ControlServer
    from gpupool.store.postgres_url import PostgresUrl

_LOG = structlog.get_logger(__name__)


def run(settings: ControlSettings) -> None:
    """Serve until SIGTERM or SIGINT; a second SIGINT ends open requests at once.

    Raises PortTakenError, EnvironmentProblemError, StorageError or ConflictError before anything is served.
    """
    set_up_logging("control", settings.log_level)
    home = settings.folders.prepare()
    # Two connections an agent: one for its reports, one for its commands.
    _LOG.info("control.open_files", limit=allow_most())
    with ExitStack() as held:
        held.enter_context(alone(home))
        listener = held.enter_context(
            bind("control", settings.control_host, settings.control_port, "GPUPOOL_CONTROL")
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, home, listener))


@contextmanager
def alone(home: Home) -> Iterator[None]:
    """Hold the state folder: one control works from it, and nobody else writes its file.

    Raises ConflictError, naming the process that holds it.
    """

    def taken() -> ConflictError:
        record = ProcessRecord.read(home.run / "control.json")
        who = f" (pid {record.process.pid}, {record.url})" if record else ""
        return ConflictError(
            f"Another control{who} runs from the state folder {home.root}.",
            remedy="Stop it first, or give another state folder with GPUPOOL_HOME.",
        )

    with held_alone(home.run / "control.lock", taken):
        yield


async def _serve(settings: ControlSettings, home: Home, listener: socket.socket) -> None:
    from gpupool.store.open import open_store, run_migration

    where = _database(settings, home)
    whom_to_tell = load_alert_file(home, settings.alert_urls)
    migration = asyncio.create_task(run_migration(where))
    # Loaded while the migration runs in its own process; there are two cores nearly everywhere.
    await asyncio.sleep(0)
    from gpupool.control.alerts.desk import AlertDesk
    from gpupool.control.alerts.set_up import desk_of
    from gpupool.control.app import build_app
    from gpupool.control.collecting import Collector
    from gpupool.control.http.guard import Tokens
    from gpupool.control.pool import Pool
    from gpupool.control.serving import ControlServer
    from gpupool.core.sealing import Seal

    desk_settings = desk_of(whom_to_tell, home.data)
    await migration
    seal = Seal.load_or_make(home.seal_key)
    tokens = Tokens.load_or_make(home)
    async with AsyncExitStack() as held:
        store = await open_store(where, busy_seconds=settings.control_lock_seconds, seal=seal, control=True)
        held.push_async_callback(store.close)
        pool = Pool(
            store,
            SystemClock(),
            instance_id=settings.instance_id or new_id("inst"),
            silence_seconds=settings.control_silence_seconds,
        )
        desk = AlertDesk(pool, desk_settings)
        port = listener.getsockname()[1]
        work = await _work(settings, home, tokens, pool, desk, port, held)
        app = build_app(pool, tokens, settings.control_body_seconds, desk)
        record = ProcessRecord(
            role="control",
            instance_id=pool.instance_id,
            process=identify_self(),
            host=settings.control_host,
            port=port,
        )
        server = ControlServer(app, lambda: _announce(record, home.run), settings.control_head_seconds)
        _end_on_signals(server, pool.close)
        working = asyncio.create_task(work())
        collecting = asyncio.create_task(Collector(pool).run())
        try:
            await server.serve([listener])
        finally:
            pool.close()
            await asyncio.gather(working, collecting)
            _withdraw(record, home.run)
    _LOG.info("control.stopped")


async def _work(
    settings: ControlSettings,
    home: Home,
    tokens: "Tokens",
    pool: "Pool",
    desk: "AlertDesk",
    port: int,
    held: AsyncExitStack,
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return what is to be done besides serving: all of the work, or a part in that of several controls."""
    from gpupool.bus.open import open_bus
    from gpupool.control.replicas import Company, alone_in, keys_digest, replica_at

    where = _database(settings, home)
    redis = settings.redis_url.get_secret_value() if settings.redis_url else None
    if isinstance(where, Path):
        bus = open_bus(redis, None)
        held.push_async_callback(bus.close)
        return await alone_in(pool, desk, bus)
    from gpupool.store.postgres_sharing import PostgresSharing

    bus, sharing = open_bus(redis, where.dsn), PostgresSharing(where)
    held.push_async_callback(bus.close)
    held.push_async_callback(sharing.close)
    me = replica_at(pool.instance_id, settings.control_host, port, settings.control_peer_url)
    company = Company(pool, sharing, bus, me, desk)
    before = ProcessRecord.read(home.run / "control.json")
    await company.enter(keys_digest(home, tokens), before.instance_id if before else None)
    held.push_async_callback(company.leave)
    return company.run


def _database(settings: ControlSettings, home: Home) -> "Path | PostgresUrl":
    """Return the database that is asked for; InvalidInputError for a URL that is none.

    Raises StorageError where the state has left the file and nothing says where it is.
    """
    if settings.database_url is None:
        moved = read_json(home.moved) or {}
        if moved.get("state") == MOVED:
            raise StorageError(
                f"The state of this pool has moved to {moved.get('to')}.",
                remedy="Start with GPUPOOL_DATABASE_URL set to it, with its password where it has one.",
            )
        return home.database
    from gpupool.store.postgres_url import parse_postgres_url

    return parse_postgres_url(settings.database_url.get_secret_value())


def _end_on_signals(server: "ControlServer", close: Callable[[], None]) -> None:
    """End politely on the first signal; on a second SIGINT without waiting for open requests."""

    def end() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True
        close()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)


def _announce(record: ProcessRecord, folder: Path) -> None:
    record.write(folder)
    _LOG.info("control.listening", url=record.url, instance_id=record.instance_id)


def _withdraw(record: ProcessRecord, folder: Path) -> None:
    if ProcessRecord.read(folder / "control.json") == record:
        (folder / "control.json").unlink()
