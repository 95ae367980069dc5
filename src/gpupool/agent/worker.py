"""The worker: carries out control's orders through a runtime, and knows how each placement stands.

An order is journalled first and carried out second, so a crash between the two is mended by `resume`. Every order
may arrive twice.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import structlog
from pydantic import ValidationError

from gpupool.agent.inventory import Inventory
from gpupool.agent.journal import Journal
from gpupool.agent.viewing import FINAL, report_of
from gpupool.contracts.agent_link import (
    Command,
    DeviceReport,
    LogsOrder,
    PlacementReport,
    StartOrder,
    StopOrder,
)
from gpupool.contracts.problems import describe
from gpupool.core.errors import GpupoolError
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.ports.runtime import InstanceState, LaunchOrder, Runtime

_log = structlog.get_logger(__name__)
_OTHER_POOL_GRACE: Final = 10.0


class Worker:
    """Runs the placements of this node."""

    def __init__(self, runtime: Runtime, journal: Journal, inventory: Inventory) -> None:
        self._runtime = runtime
        self._journal = journal
        self._inventory = inventory
        self._refused: dict[str, str] = {}
        """Placements that never ran here, with the reason."""
        self._gone: set[str] = set()
        """Placements that control wants ended and that are not here."""
        self._news = asyncio.Event()
        self._handling = asyncio.Lock()
        self._stops: dict[str, asyncio.Task[None]] = {}
        self._leaving = False

    @property
    def node_id(self) -> str | None:
        """The id that control gave this node; None before the first join."""
        return self._journal.node_id

    @property
    def last_seq(self) -> int:
        """The highest command that is safe with us."""
        return self._journal.last_seq

    @property
    def devices(self) -> tuple[DeviceReport, ...]:
        """The node's devices."""
        return self._inventory.devices

    async def resume(self) -> None:
        """Take over what an earlier agent left, launch what it no longer could, and end what was to be ended."""
        here = {item.placement_id for item in await self._runtime.adopt()}
        for name, wanted in list(self._journal.wanted.items()):
            if wanted.stop_grace is not None:
                self._begin_stop(name, wanted.stop_grace)
            elif name not in here:
                await self._launch(wanted.order)

    async def identified(self, node_id: str) -> None:
        """Note the id control gave us; placements ordered under another id belong to another pool and end."""
        if await self._journal.adopt_identity(node_id):
            _log.warning("joined another pool; ending the placements of the last one", node=node_id)
            await self._end_everything(_OTHER_POOL_GRACE)
            await self._forget(item.placement_id for item in await self._runtime.instances())

    async def dismissed(self) -> None:
        """The node was removed from the pool: end everything that was placed here, and forget it."""
        await self._end_everything(_OTHER_POOL_GRACE)
        here = {item.placement_id for item in await self._runtime.instances()}
        await self._forget(here | set(self._journal.wanted) | set(self._refused) | self._gone)

    async def handle(self, command: Command) -> LogsOrder | None:
        """Carry out one command, each only once; returns the order where the answer is a log.

        Raises GpupoolError where the journal cannot be written: the command is then not acknowledged.
        """
        async with self._handling:
            return await self._handle(command)

    async def _handle(self, command: Command) -> LogsOrder | None:
        if self._leaving or 0 < command.seq <= self._journal.last_seq:
            return None
        try:
            if command.kind == "logs":
                return LogsOrder.model_validate(command.payload)
            if command.kind == "start":
                await self._start(command.seq, StartOrder.model_validate(command.payload))
            else:
                await self._stop(command.seq, StopOrder.model_validate(command.payload))
        except ValidationError as error:
            await self._not_understood(command, describe(error))
        self._news.set()
        return None

    async def placements(self) -> list[PlacementReport]:
        """Return how every placement of this node stands, those with an untold end included."""
        reports = {}
        for instance in await self._runtime.instances():
            wanted = self._journal.wanted.get(instance.placement_id)
            stopping = self._leaving or (wanted is not None and wanted.stop_grace is not None)
            reports[instance.placement_id] = report_of(instance, stopping=stopping)
        for name, wanted in self._journal.wanted.items():
            if name not in reports and name not in self._refused:
                state = PlacementState.STARTING if wanted.stop_grace is None else PlacementState.ENDED
                reports[name] = PlacementReport(placement_id=name, state=state)
        for name, reason in self._refused.items():
            reports[name] = PlacementReport(placement_id=name, state=PlacementState.FAILED, reason=reason)
        for name in self._gone - reports.keys():
            reports[name] = PlacementReport(placement_id=name, state=PlacementState.ENDED)
        return list(reports.values())

    async def told(self, reports: Sequence[PlacementReport]) -> None:
        """Control has taken these reports in: forget the placements whose end they tell."""
        await self._forget(report.placement_id for report in reports if report.state in FINAL)

    async def news(self, seconds: float) -> None:
        """Return when a placement has changed, at the latest after ``seconds``."""
        waits = [asyncio.ensure_future(self._runtime.changed()), asyncio.ensure_future(self._news.wait())]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in waits:
                waiting.cancel()
            await asyncio.wait(waits)
        self._news.clear()

    async def log_tail(self, placement_id: str, lines: int) -> str:
        """Return the last lines of a placement's output; NotFoundError when there are none here."""
        return await self._runtime.log_tail(placement_id, lines)

    async def leave(self, most_grace: float, hurry: asyncio.Event) -> None:
        """End every placement and take no new one; ``hurry`` ends them at once. Returns when all are gone."""
        self._leaving = True
        self._news.set()
        ending = asyncio.ensure_future(self._end_everything(most_grace))
        hurrying = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({ending, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await self._end_everything(0.0)
        await ending
        hurrying.cancel()

    async def close(self) -> None:
        """Let go of the runtime; what still runs goes on."""
        for task in self._stops.values():
            task.cancel()
        await self._runtime.close(stop_instances=False)

    async def _start(self, seq: int, order: StartOrder) -> None:
        name = order.placement_id
        await self._journal.start(seq, order)
        wanted = self._journal.wanted.get(name)
        if name not in self._refused and wanted is not None and wanted.stop_grace is None:
            await self._launch(order)

    async def _launch(self, order: StartOrder) -> None:
        try:
            indices, uuids = self._inventory.visible(order.device_ids)
            await self._runtime.launch(_launch_order(order, indices, uuids))
        except GpupoolError as error:
            _log.warning("launch refused", placement=order.placement_id, error=error.message)
            self._refused[order.placement_id] = f"launch: {error.message}"

    async def _stop(self, seq: int, order: StopOrder) -> None:
        await self._journal.stop(seq, order.placement_id, order.grace_seconds)
        here = {item.placement_id for item in await self._runtime.instances()}
        if order.placement_id in here:
            self._begin_stop(order.placement_id, order.grace_seconds)
        elif order.placement_id not in self._journal.wanted:
            self._gone.add(order.placement_id)

    async def _not_understood(self, command: Command, fault: str) -> None:
        _log.error("command not understood", kind=command.kind, seq=command.seq, fault=fault)
        name = command.payload.get("placement_id")
        if command.kind == "start" and isinstance(name, str):
            self._refused[name[:100]] = f"launch: the node does not understand the order: {fault}"
        await self._journal.passed(command.seq)

    def _begin_stop(self, placement_id: str, grace_seconds: float) -> None:
        running = self._stops.get(placement_id)
        if running is None or running.done():
            self._stops[placement_id] = asyncio.create_task(
                self._runtime.stop(placement_id, grace_seconds), name=f"stop {placement_id}"
            )

    async def _end_everything(self, most_grace: float) -> None:
        here = await self._runtime.instances()
        self._news.set()
        alive = [item.placement_id for item in here if item.state is not InstanceState.EXITED]
        await asyncio.gather(*(self._runtime.stop(name, self._grace(name, most_grace)) for name in alive))

    def _grace(self, name: str, most: float) -> float:
        wanted = self._journal.wanted.get(name)
        return most if wanted is None else min(most, wanted.order.grace_seconds)

    async def _forget(self, names: Iterable[str]) -> None:
        final = set(names)
        # The journal first: an order that is still in it while its instance is gone would be carried out again.
        await self._journal.drop(final)
        for name in final:
            await self._runtime.forget(name)
            self._refused.pop(name, None)
            self._stops.pop(name, None)
        self._gone -= final


def _launch_order(order: StartOrder, indices: tuple[int, ...], uuids: tuple[str, ...]) -> LaunchOrder:
    return LaunchOrder(
        placement_id=order.placement_id,
        workload_name=order.workload_name,
        command=tuple(order.command),
        image=order.image,
        env=order.env,
        port=order.port,
        health_path=order.health_path,
        tls=order.tls,
        gpu_indices=indices,
        gpu_uuids=uuids,
        memory_mib=order.memory_mib,
        model_ref=order.model_ref,
        start_timeout_seconds=order.start_timeout_seconds,
        grace_seconds=order.grace_seconds,
        max_restarts=order.max_restarts,
    )
