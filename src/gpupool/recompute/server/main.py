"""The recompute server as a process: checks its port, listens, tests itself, then takes requests until told to stop.

It never imports an engine itself; its workers, processes of their own, do. Whoever started it can watch it come up:
`/healthz` answers at once, `/readyz` when a worker has compiled every kernel and recovered a known proof. The first
SIGTERM or SIGINT lets work in progress end, a second one does not wait, and nothing outlasts the limit.
"""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import structlog
from aiohttp import web

from gpupool.contracts.bad_heads import connections, has_place
from gpupool.core.errors import EnvironmentProblemError, GpupoolError
from gpupool.core.files import ensure_private_dir
from gpupool.core.ids import new_id
from gpupool.core.listening import bind, stop_signal
from gpupool.core.logging import set_up_logging
from gpupool.core.open_files import allow_most, connections_within
from gpupool.core.processes import identify_self
from gpupool.core.records import ProcessRecord
from gpupool.devices.recovery.choosing import MAKERS, Maker
from gpupool.recompute.credentials import is_loopback, read_tokens, tls_files
from gpupool.recompute.renewing import Renewed
from gpupool.recompute.server.app import RecomputeServer
from gpupool.recompute.server.banner import device_lines, listening_line, processor_name, say
from gpupool.recompute.server.cards import CardChoices, Found, find_cards, notices, use_cards
from gpupool.recompute.server.crew import Crew, ProcessCrew
from gpupool.recompute.server.doorway import MOST_SILENT, Doorway
from gpupool.recompute.server.ending import GRACE_SECONDS, end_within
from gpupool.recompute.server.problems import refuse_head
from gpupool.recompute.server.seat import SeatRules
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.server.solving import SolverDesk, solver_worker
from gpupool.recompute.server.staffing import WorkerPlan, card_workers, cpu_worker, thread_advice
from gpupool.recompute.server.suitability import Suitability
from gpupool.recompute.server.work import WorkQueue
from gpupool.solvers.solver import installed_release

ROLE: Final = "recompute"
VARIABLES: Final = "GPUPOOL_RECOMPUTE"
KERNEL_CACHE: Final = "NUMBA_CACHE_DIR"
_HOSTS: Final[dict[Maker, str]] = {"CUDA": "CUDA (native)", "OpenCL": "OpenCL"}
"""How a card is driven, as start-up prints it."""
_HEAD_SECONDS: Final = 10.0
"""For the first bytes of a connection, and for a TLS handshake."""
_CLOSE_SECONDS: Final = 0.5
"""For answers that are being sent at a stop, and again for handlers that are cancelled then."""
log = structlog.get_logger(__name__)


def run(settings: RecomputeServerSettings, choices: CardChoices) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises errors of `core.errors` before listening (PortTakenError, wrong cards or files), and later where no worker
    ever becomes ready.
    """
    if find_spec("numba") is None:
        raise EnvironmentProblemError(
            "Recompute needs numba, which is not installed.",
            remedy="Install it: pip install 'gpupool[recompute]'.",
        )
    with bind(f"the {ROLE} server", settings.recompute_host, settings.recompute_port, VARIABLES) as listener:
        plans, lines = staff(settings, choices, find_cards(choices))
        set_up_logging(ROLE, settings.log_level)
        _keep_kernels(settings)
        # Beside those that have said what they speak there are some that have not yet.
        most = connections_within(allow_most(), settings.recompute_connections, each=2)
        settings = settings.model_copy(update={"recompute_connections": most})
        say(*lines)
        # The doorway waits for readable sockets, which the default loop of Windows cannot.
        with (
            asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner,
            suppress(asyncio.CancelledError),
        ):
            runner.run(serve(settings, listener, plans, Suitability(choices.least_log_entries)))


def _keep_kernels(settings: RecomputeServerSettings) -> None:
    """Let workers keep compiled kernels; without a folder each start takes some ten seconds longer."""
    if os.environ.get(KERNEL_CACHE):
        return
    try:
        os.environ[KERNEL_CACHE] = str(ensure_private_dir(settings.kernel_cache))
    except EnvironmentProblemError as error:
        log.warning("kernels_not_kept", why=error.message, remedy=error.remedy)


def staff(
    settings: RecomputeServerSettings, choices: CardChoices, found: Found
) -> tuple[list[WorkerPlan], list[str]]:
    """Return the workers, the CPU's first, and the lines that start-up prints.

    Raises InvalidInputError where an index names no card of this machine.
    """
    cards = use_cards(choices, found)
    plans = [cpu_worker(processor_name(), settings.threads.used), *card_workers(cards)]
    devices = [(card.name, _HOSTS[card.maker]) for card in cards]
    devices.append((plans[0].name, f"CPU ({plans[0].engine})"))
    counts = [
        (maker, sum(card.maker == maker for card in cards), len(found.names(maker))) for maker in MAKERS
    ]
    advice = thread_advice(len(cards), settings.threads.used, settings.threads.cores)
    lines = device_lines(
        settings.threads, counts, devices, [*notices(choices, found), *filter(None, [advice])]
    )
    return plans, lines


async def serve(
    settings: RecomputeServerSettings,
    listener: socket.socket,
    plans: Sequence[WorkerPlan],
    suitability: Suitability | None = None,
) -> None:
    """Serve ``listener`` with one worker process for each of ``plans``, until told to stop; errors as for `run`."""
    instance_id = settings.instance_id or new_id("inst")
    stop = stop_signal()
    rules = SeatRules(stuck_seconds=settings.recompute_stuck_seconds, log_level=settings.log_level)
    crew = ProcessCrew(plans, rules)
    try:
        async with listening(settings, instance_id, listener, crew, suitability) as (_, port):
            record = _keep_record(settings, instance_id, port)
            say(listening_line(settings.recompute_host, port))
            _warn_if_open(settings)
            try:
                await _work_until(stop, crew)
                end_within(settings.recompute_drain_seconds + GRACE_SECONDS)
                log.info("recompute_stopping", seconds=settings.recompute_drain_seconds)
            finally:
                _remove_record(record, instance_id)
    finally:
        await crew.end()


async def _work_until(stop: asyncio.Event, crew: ProcessCrew) -> None:
    """Keep workers at work until told to stop; raise what keeps all of them from ever being ready."""
    stopping, working = asyncio.create_task(stop.wait()), crew.begin()
    awaited: set[asyncio.Future[Any]] = {stopping, working}
    try:
        await asyncio.wait({crew.begun, *awaited}, return_when=asyncio.FIRST_COMPLETED)
        if crew.begun.done():
            crew.begun.result()
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        stopping.cancel()


@asynccontextmanager
async def listening(
    settings: RecomputeServerSettings,
    instance_id: str,
    listener: socket.socket,
    crew: Crew,
    suitability: Suitability | None = None,
) -> AsyncIterator[tuple[RecomputeServer, int]]:
    """Serve ``listener`` for as long as the block lasts; give the server and the port.

    At the end no new request is taken, and work in progress gets ``recompute_drain_seconds``. Raises
    EnvironmentProblemError or InvalidInputError where files of tokens or TLS cannot be used.
    """
    files = tls_files(settings.recompute_tls_cert, settings.recompute_tls_key, settings.recompute_client_ca)
    context = None if files is None else Renewed(files.paths, files.context, time.monotonic)
    token_file = settings.recompute_token_file
    tokens = (
        None
        if token_file is None
        else Renewed((token_file,), lambda: read_tokens(token_file), time.monotonic).get
    )
    queue = WorkQueue(crew, settings.recompute_queue_room, suitability=suitability)
    desk = _solver_desk(settings, queue)
    server = RecomputeServer(
        queue,
        instance_id,
        deadline_ms=settings.recompute_deadline_ms,
        tokens=tokens,
        certificate=settings.recompute_client_ca is not None,
        solver=desk,
    )
    runner = web.AppRunner(server.application(), handler_cancellation=True, shutdown_timeout=_CLOSE_SECONDS)
    await runner.setup()
    http = runner.server
    if http is None:
        raise GpupoolError("The HTTP server was not set up.")
    most = settings.recompute_connections
    doorway = Doorway(
        listener,
        connections(http, refuse_head, access_log=None, keepalive_timeout=settings.recompute_idle_seconds),
        None if context is None else context.get,
        head_seconds=min(_HEAD_SECONDS, settings.recompute_idle_seconds),
        has_room=lambda: has_place(http, most),
        most_silent=min(MOST_SILENT, most),
    )
    accepting = asyncio.create_task(doorway.run())
    try:
        yield server, int(listener.getsockname()[1])
        server.end()
        drained = [queue.drain(settings.recompute_drain_seconds)]
        if desk is not None:
            drained.append(desk.queue.drain(settings.recompute_drain_seconds))
        await asyncio.gather(*drained)
    finally:
        accepting.cancel()
        await asyncio.wait({accepting})
        await runner.cleanup()
        if desk is not None:
            await desk.end()


def _solver_desk(settings: RecomputeServerSettings, lookups: WorkQueue) -> SolverDesk | None:
    """Return what solves partial proofs of v2 plots here, if that is wanted and chia_rs is installed.

    Where it is asked for by name, its processes are started at once, and a missing library is an error.
    """
    release, asked_for = installed_release(), "recompute_solvers" in settings.model_fields_set
    if not settings.recompute_solvers:
        return None
    if release is None:
        if asked_for:
            raise EnvironmentProblemError(
                "Solving partial proofs of v2 plots needs chia_rs, which is not installed.",
                remedy="Install the farmers' release of it (0.48.0 for Chia 2.7.5) into this environment, or leave out"
                " --solvers.",
            )
        return None
    rules = SeatRules(stuck_seconds=settings.recompute_stuck_seconds, log_level=settings.log_level)
    crew = ProcessCrew([solver_worker(settings.recompute_solvers)], rules)
    desk = SolverDesk(crew, lookups, settings.recompute_queue_room, release)
    if asked_for:
        desk.begin()
    return desk


def _keep_record(settings: RecomputeServerSettings, instance_id: str, port: int) -> Path | None:
    """Leave a record for `gpupool status` where the operator chose a state folder; return its path."""
    if not settings.home_is_given or not sys.platform.startswith("linux"):
        return None
    record = ProcessRecord(
        role=ROLE, instance_id=instance_id, process=identify_self(), host=settings.recompute_host, port=port
    )
    try:
        return record.write(ensure_private_dir(settings.folders.run))
    except EnvironmentProblemError as error:
        log.warning(
            "no_record", why=error.message, remedy=f"{error.remedy} `gpupool status` misses this server."
        )
        return None


def _remove_record(path: Path | None, instance_id: str) -> None:
    """Remove the record, unless another server on this state folder has written its own over it."""
    record = None if path is None else ProcessRecord.read(path)
    if path is not None and record is not None and record.instance_id == instance_id:
        path.unlink(missing_ok=True)


def _warn_if_open(settings: RecomputeServerSettings) -> None:
    if is_loopback(settings.recompute_host):
        return
    if settings.recompute_token_file is None and settings.recompute_client_ca is None:
        log.warning(
            "open_to_everyone",
            host=settings.recompute_host,
            what_to_do="Whoever reaches this port can use this machine. Limit it with a firewall, or give"
            " --token-file, or --tls-cert, --tls-key and --client-ca.",
        )
