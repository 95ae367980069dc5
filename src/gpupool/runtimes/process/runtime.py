"""The runtime port, served by local processes: all runs of a node, and the loop that looks after them together."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp
import structlog

from gpupool.core.files import ensure_private_dir
from gpupool.core.ports import draw_chute_port, port_is_free
from gpupool.core.processes import ProcessIdentity
from gpupool.fleet.ports.runtime import Instance, LaunchOrder
from gpupool.runtimes.process import adoption, clearing, output
from gpupool.runtimes.process.confinement import FIRST_UID, Confinement, Wall, draw_uid, look
from gpupool.runtimes.process.environment import LaunchFailedError, Surroundings, is_ours
from gpupool.runtimes.process.records import RunFolder, RunRecord, give_to
from gpupool.runtimes.process.supervising import Context, Policy, Supervisor
from gpupool.runtimes.process.table import members, read_table, resident_mib

_log = structlog.get_logger(__name__)


class ProcessRuntime:
    """Runs instances as process groups of this machine. Serves `gpupool.fleet.ports.runtime.Runtime`.

    Use from one event loop; `adopt` first, `close` last.
    """

    def __init__(
        self,
        runs: Path,
        cache: Path,
        host: str = "127.0.0.1",
        policy: Policy | None = None,
        confinement: Confinement | None = None,
    ) -> None:
        """``runs``: run records and output; ``cache``: models and kernels; ``host``: where workloads listen.

        ``confinement``: the wall around workloads; left out, the highest that this machine offers.
        """
        wall = confinement or Confinement(offer=look(), protected=Path(os.path.commonpath((runs, cache))))
        self._around = Surroundings(runs=runs, cache=cache, host=host, confinement=wall)
        self._policy = policy or Policy()
        self._supervisors: dict[str, Supervisor] = {}
        self._uncut: set[str] = set()
        """Placements whose output could not be cut."""
        self._changed = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def adopt(self) -> Sequence[Instance]:
        """Take over what runs on, end what no record names, and note what is gone; call once, first."""
        await asyncio.to_thread(self._prepare)
        context = self._context()
        adopting = []
        for folder, record, alive in await asyncio.to_thread(adoption.take_stock, self._around.runs):
            supervisor = Supervisor(context, folder, record)
            self._supervisors[record.order.placement_id] = supervisor
            if alive:
                adopting.append(supervisor.adopt())
        # Together, and not in the background: what was in service is then told as in service, without a gap.
        await asyncio.gather(*adopting)
        self._watcher = asyncio.create_task(self._look_after(), name="look after runs")
        return await self.instances()

    async def launch(self, order: LaunchOrder) -> Instance:
        """Start an instance, or return the one that this placement has, which may have exited already."""
        known = self._supervisors.get(order.placement_id)
        if known is not None:
            return known.instance
        folder = RunFolder.of(self._around.runs, order.placement_id)
        record = RunRecord(order=order, host=self._around.host, uid=self._draw_uid(order))
        supervisor = self._supervisors[order.placement_id] = Supervisor(self._context(), folder, record)
        await supervisor.start()
        return supervisor.instance

    async def stop(self, placement_id: str, grace_seconds: float | None = None) -> None:
        """End an instance and return when nothing of it runs; unknown and exited ones are no error."""
        supervisor = self._supervisors.get(placement_id)
        if supervisor is not None and not supervisor.over:
            grace = supervisor.order.grace_seconds if grace_seconds is None else grace_seconds
            await supervisor.stop(grace)

    async def instances(self) -> Sequence[Instance]:
        """Return every instance known, exited ones until `forget`."""
        self._changed.clear()
        return [supervisor.instance for supervisor in self._supervisors.values()]

    async def changed(self) -> None:
        """Wait until some instance has changed since the last call of `instances`."""
        await self._changed.wait()

    async def forget(self, placement_id: str) -> None:
        """Drop an exited instance's record and private folders; its output stays until newer ones push it out."""
        supervisor = self._supervisors.get(placement_id)
        if supervisor is None or not supervisor.over:
            return
        del self._supervisors[placement_id]
        self._uncut.discard(placement_id)
        folder = RunFolder.of(self._around.runs, placement_id)
        await asyncio.to_thread(clearing.forget, folder, supervisor.record.uid)
        await asyncio.to_thread(clearing.prune, self._around.runs)

    async def log_tail(self, placement_id: str, lines: int) -> str:
        """Return the last lines of the instance's output, at most 1 MiB; NotFoundError when there is none."""
        folder = RunFolder.of(self._around.runs, placement_id)
        return await asyncio.to_thread(output.tail, folder.output, lines)

    async def close(self, *, stop_instances: bool) -> None:
        """Let go of the instances, or end them first, each with its own grace."""
        supervisors = list(self._supervisors.values())
        if stop_instances:
            await asyncio.gather(*(self.stop(item.order.placement_id) for item in supervisors))
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        for supervisor in supervisors:
            await supervisor.let_go()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _prepare(self) -> None:
        """Make the folders that runs share, and say how high the wall around them is."""
        own_user = FIRST_UID if self._walled() else None
        kernels = self._around.cache / ("numba" if own_user is None else f"numba-{own_user}")
        for path in (self._around.runs, self._around.models, kernels):
            ensure_private_dir(path)
        if own_user is not None:
            give_to(kernels, own_user)
        offer = self._around.confinement.offer
        tell = _log.warning if offer.wall is Wall.FOLDERS else _log.info
        tell("workloads are confined", by=offer.wall.value, missing=offer.why or "nothing")

    def _walled(self) -> bool:
        return self._around.confinement.offer.wall is Wall.OWN_USER

    def _draw_uid(self, order: LaunchOrder) -> int | None:
        """Return the user of a new run: one for all of ours, who trust each other, and one for each other run."""
        if not self._walled():
            return None
        if is_ours(order):
            return FIRST_UID
        taken = {supervisor.record.uid for supervisor in self._supervisors.values()}
        try:
            return draw_uid({uid for uid in taken if uid is not None})
        except LookupError as error:
            raise LaunchFailedError(f"{error}.") from error

    def _context(self) -> Context:
        if self._session is None:
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return Context(
            around=self._around,
            policy=self._policy,
            session=self._session,
            draw_port=self._draw_port,
            changed=self._changed.set,
        )

    def _draw_port(self, order: LaunchOrder, present: int | None) -> int:
        """Return a port no other run holds. The loop is not left between drawing and noting it in the record."""
        others = {
            supervisor.record.port
            for supervisor in self._supervisors.values()
            if supervisor.record.port and not supervisor.over and supervisor.order is not order
        }
        wanted = order.port or present
        if wanted and wanted not in others and port_is_free(wanted, self._around.host):
            return wanted
        if order.port:
            raise LaunchFailedError(f"port {order.port} is taken.")
        drawn = draw_chute_port({port for port in others if port}, self._around.host)
        if drawn is None:
            raise LaunchFailedError("no port from 30000 to 32767 is free.")
        return drawn

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(self._policy.watch_pause)
            watched = [item for item in self._supervisors.values() if item.process is not None]
            if watched:
                for supervisor, process, mib in await asyncio.to_thread(self._look, watched):
                    supervisor.measured(process, mib)

    def _rotate(self, folder: RunFolder, placement_id: str) -> None:
        """Cut an output that is too long; one that cannot be cut is told once and left alone."""
        if placement_id in self._uncut:
            return
        try:
            if output.rotate(folder.output):
                _log.info("output rotated", placement=placement_id)
        except OSError as error:
            self._uncut.add(placement_id)
            _log.warning("output not rotated", placement=placement_id, error=error.strerror)

    def _look(self, watched: Sequence[Supervisor]) -> list[tuple[Supervisor, ProcessIdentity, int]]:
        """Cut long outputs and return each run's memory; reads /proc and may copy some MiB."""
        table = read_table()
        used: list[tuple[Supervisor, ProcessIdentity, int]] = []
        for supervisor in watched:
            folder = RunFolder.of(self._around.runs, supervisor.order.placement_id)
            self._rotate(folder, supervisor.order.placement_id)
            process = supervisor.process
            if process is not None:
                used.append((supervisor, process, resident_mib(members(process, table))))
        return used
