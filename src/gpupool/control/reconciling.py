"""The reconciler: one task that leads what is there towards what is wanted.

Woken by every change and every few seconds. It looks at a snapshot outside any transaction; only where that shows a
step to take does it open a transaction, read again inside it, and take the step that is right then.
"""

import asyncio
import time
from dataclasses import replace
from typing import Protocol

import structlog

from gpupool.contracts.agent_link import StartOrder
from gpupool.control.planning import Drain, Explain, Place, next_step
from gpupool.control.pool import Change, Pool
from gpupool.control.recording import drain, move_node
from gpupool.control.snapshot import load_snapshot
from gpupool.core.errors import ConflictError, LeaseLostError, StorageError
from gpupool.core.ids import new_id
from gpupool.fleet.claims import Claim, ClaimMode
from gpupool.fleet.devices import DeviceKind
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import Placement
from gpupool.fleet.workloads import Workload
from gpupool.scheduling.port import Decision

_LOG = structlog.get_logger(__name__)
PERIOD = 5.0
"""Seconds between looks when nothing changes."""
MOST_REST = 0.25
"""Seconds between looks, as long as the last one took, however much changes."""
_MAX_STEPS = 10_000
_RESTART_PAUSE = 1.0


class Reconciler:
    """Takes one step after the other until there is none to take."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._last_look = pool.clock.monotonic()
        self._period = min(PERIOD, pool.silence_seconds / 4)

    async def run(self) -> None:
        """Work until the pool closes."""
        pool = self._pool
        while not pool.changes.closed:
            seen, began = pool.changes.count, time.perf_counter()
            await self.settle()
            pause = await self._seconds_to_next()
            # A large pool that never stops changing would be looked through without end.
            await asyncio.sleep(min(MOST_REST, time.perf_counter() - began))
            await pool.changes.after(seen, pause)

    async def settle(self) -> None:
        """Take every step that can be taken now."""
        await self._note_silence()
        await self._end_waiting_for_nodes()
        for workload_id in await self._attention():
            await self._settle_workload(workload_id)

    async def _settle_workload(self, workload_id: str) -> None:
        """Take the steps of one workload; one that the store refuses does not hold up the others."""
        try:
            for _ in range(_MAX_STEPS):
                if not await self._step(workload_id):
                    break
        except ConflictError as error:
            _LOG.warning("step.refused", workload=workload_id, code=error.code, message=error.message)

    async def _attention(self) -> list[str]:
        """Return the workloads with a step to take, looked up without a transaction."""
        snapshot = await self._pool.snapshot()
        now = self._pool.clock.now()
        live = {placement.workload_id for placement in snapshot.live}
        return [
            workload.id
            for workload in snapshot.workloads.values()
            if (not workload.deleted or workload.id in live)
            and next_step(snapshot, workload, self._pool.strategy, now) is not None
        ]

    async def _step(self, workload_id: str) -> bool:
        """Take the next step for one workload in one transaction; False when there is none."""
        async with self._pool.decide() as change:
            snapshot = await load_snapshot(change.writer, self._pool.links.leaving())
            workload = snapshot.workloads[workload_id]
            step = next_step(snapshot, workload, self._pool.strategy, change.at)
            if step is None:
                return False
            if isinstance(step, Place):
                node = snapshot.nodes[step.decision.node_id or ""]
                gpus = [device.id for device in snapshot.devices[node.id] if device.kind is DeviceKind.GPU]
                memory = {device.id: device.memory_mib for device in snapshot.devices[node.id]}
                await _place(change, workload, step.decision, memory, gpus)
            elif isinstance(step, Drain):
                await drain(change, step.placement, workload, step.reason)
            else:
                await _explain(change, workload, step)
        return True

    async def _note_silence(self) -> None:
        """Record nodes that have been silent too long; when this process itself was asleep, give them time first."""
        pool, limit = self._pool, self._pool.silence_seconds
        if pool.sharing is not None and pool.links.gone_silent(limit):
            pool.links.learn(await pool.sharing.heard(), pool.instance_id)
        now = pool.clock.monotonic()
        asleep, self._last_look = now - self._last_look > limit / 2, now
        if asleep and pool.links.gone_silent(limit):
            pool.links.excuse(self._last_look - limit / 2)
        for node_id in pool.links.gone_silent(limit):
            if pool.sharing is not None and not await self._is_member(node_id):
                pool.links.forget(node_id)
                continue
            async with pool.decide() as change:
                node, link = await change.writer.node(node_id), pool.links.get(node_id)
                if node is None or node.removed:
                    pool.links.forget(node_id)
                    continue
                if link is None or node_id not in pool.links.gone_silent(limit):
                    continue
                await move_node(change, node, NodeState.UNREACHABLE, "silent")
            link.silent = True

    async def _is_member(self, node_id: str) -> bool:
        """Tell whether a node belongs to the pool: others may have heard one that was removed since."""
        node = (await self._pool.snapshot()).nodes.get(node_id)
        return node is not None and not node.removed

    async def _end_waiting_for_nodes(self) -> None:
        """Call the feed complete once the nodes of the last run have had their time to come back."""
        pool = self._pool
        if pool.awaited and pool.clock.monotonic() - pool.started > pool.silence_seconds:
            missing = len(pool.awaited)
            pool.awaited.clear()
            async with pool.decide() as change:
                await change.emit("pool.settled", pool.instance_id, missing_nodes=missing)

    async def _seconds_to_next(self) -> float:
        """Return how long nothing can be due, unless something changes."""
        snapshot, now = await self._pool.snapshot(), self._pool.clock.now()
        pauses = [
            (workload.not_before - now).total_seconds()
            for workload in snapshot.wanted_workloads()
            if workload.not_before is not None and workload.backs_off(now)
        ]
        return max(0.05, min([self._period, *pauses]))


async def _place(
    change: Change, workload: Workload, decision: Decision, memory: dict[str, int], gpus: list[str]
) -> None:
    """Write placement, claims, start command and event together."""
    spec = workload.spec
    node_id = decision.node_id or ""
    placement = Placement(
        id=new_id("pl"),
        workload_id=workload.id,
        workload_version=workload.version,
        node_id=node_id,
        port=spec.port,
        created_at=change.at,
        changed_at=change.at,
    )
    await change.writer.put_placement(placement)
    for device_id in decision.device_ids:
        mib = memory[device_id] if decision.mode is ClaimMode.EXCLUSIVE else decision.mib
        await change.writer.claim(
            Claim(placement_id=placement.id, device_id=device_id, mode=decision.mode, mib=mib)
        )
    order = StartOrder(
        placement_id=placement.id,
        workload_id=workload.id,
        workload_name=spec.name,
        kind=spec.kind.value,
        command=list(spec.command),
        image=spec.image,
        env=dict(spec.env),
        port=spec.port,
        health_path=spec.health_path,
        tls=spec.tls,
        device_ids=[device_id for device_id in decision.device_ids if device_id in gpus],
        memory_mib=spec.memory_mib,
        model_ref=spec.model_ref,
        start_timeout_seconds=spec.start_timeout_seconds,
        grace_seconds=spec.grace_seconds,
        max_restarts=spec.max_restarts,
    )
    await change.command(node_id, "start", order.model_dump(mode="json"))
    await change.emit(
        "placement.planned",
        placement.id,
        workload=spec.name,
        node_id=node_id,
        version=workload.version,
        hourly_usd=decision.hourly_usd,
    )


async def _explain(change: Change, workload: Workload, step: Explain) -> None:
    await change.writer.put_workload(replace(workload, why=step.why))
    kind = "workload.waiting" if step.why else "workload.settled"
    await change.emit(kind, workload.id, workload=workload.name, why=step.why)


class Tireless(Protocol):
    """Works until the pool closes."""

    async def run(self) -> None:
        """Work."""
        ...


async def supervise(worker: Tireless) -> None:
    """Keep the reconciler, or another one, working: log what it dies of and start it again after a pause.

    That the database cannot be reached is no fault of the worker's, and needs no traceback to be understood. Where
    another control leads by now, the work is over.
    """
    while True:
        task = asyncio.create_task(worker.run())
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        error = task.exception()
        if error is None:
            return
        if isinstance(error, LeaseLostError):
            _LOG.warning("worker.deposed", worker=type(worker).__name__, error=error.message)
            return
        if isinstance(error, StorageError):
            _LOG.warning(
                "worker.waits", worker=type(worker).__name__, error=error.message, remedy=error.remedy
            )
        else:
            _LOG.error("worker.died", worker=type(worker).__name__, exc_info=error)
        await asyncio.sleep(_RESTART_PAUSE)
