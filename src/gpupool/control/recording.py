"""State changes as they are recorded: the record and its event, always together.

Every module that moves a node or a placement does it here, so no move can forget its event, its back-off or the
return of its claims.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from random import Random

from gpupool.contracts.agent_link import StopOrder
from gpupool.control.pool import Change
from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.placements import Placement, PlacementState, path_to
from gpupool.fleet.workloads import LONGEST_PAUSE_SECONDS, Workload


def pause_after(failures: int, random: Random) -> float:
    """Return the seconds to wait after so many failures in a row (>= 1): doubling from 1 to 60, with jitter."""
    return min(LONGEST_PAUSE_SECONDS, 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1.0)


async def move_node(change: Change, node: Node, to: NodeState, reason: str | None = None) -> Node:
    """Record the node in state ``to`` and return it; nothing happens when it is there already."""
    moved = node.moved(to)
    if node.state is to:
        return node
    await change.writer.put_node(moved)
    await change.emit(f"node.{to.value}", node.id, node=node.name, reason=reason)
    return moved


async def move_placement(
    change: Change, placement: Placement, to: PlacementState, reason: str | None = None
) -> Placement:
    """Record every step from the placement's state to ``to`` and return it; nothing happens where none leads there."""
    workload = await change.writer.workload(placement.workload_id)
    for step in path_to(placement.state, to):
        placement = placement.moved(step, change.at, reason if step is to else None)
        await change.writer.put_placement(placement)
        await change.emit(
            f"placement.{step.value}",
            placement.id,
            workload=workload.name if workload else None,
            node_id=placement.node_id,
            version=placement.workload_version,
            reason=(reason or placement.reason) if step is to else None,
        )
        if not placement.live:
            await note_drained(change, placement.node_id)
    return placement


async def note_drained(change: Change, node_id: str) -> None:
    """Write an event where a draining node has nothing left."""
    node = await change.writer.node(node_id)
    if node is None or not node.draining:
        return
    if not await change.writer.placements(node_id=node_id, live=True, limit=1):
        await change.emit("node.drained", node_id, node=node.name)


async def drain(change: Change, placement: Placement, workload: Workload | None, reason: str) -> None:
    """Let a placement take nothing new and order its node to stop it."""
    await move_placement(change, placement, PlacementState.DRAINING, reason)
    await order_stop(
        change, placement.node_id, placement.id, workload.spec.grace_seconds if workload else 10.0
    )


async def order_stop(change: Change, node_id: str, placement_id: str, grace_seconds: float = 10.0) -> None:
    """Queue a stop, unless the node has one for this placement that it has not acknowledged."""
    for command in await change.writer.commands(node_id, limit=10_000):
        if command.kind == "stop" and command.payload.get("placement_id") == placement_id:
            return
    order = StopOrder(placement_id=placement_id, grace_seconds=grace_seconds)
    await change.command(node_id, "stop", order.model_dump(mode="json"))


async def count_failure(change: Change, workload_id: str, reason: str | None, random: Random) -> None:
    """Put off the next attempt at a workload after one of its placements has failed."""
    workload = await change.writer.workload(workload_id)
    if workload is None or workload.deleted:
        return
    failures = workload.failures + 1
    seconds = pause_after(failures, random)
    why = f"failed {failures} time{'s' if failures > 1 else ''} in a row, last: {reason or 'no reason given'}"
    await change.writer.put_workload(
        replace(
            workload, failures=failures, not_before=change.at + timedelta(seconds=seconds), why=why[:2000]
        )
    )
    data: Mapping[str, str | float] = {
        "workload": workload.name,
        "why": why[:2000],
        "pause": round(seconds, 2),
    }
    await change.emit("workload.backing_off", workload.id, **data)


async def clear_failures(change: Change, workload_id: str) -> None:
    """Forget the failures of a workload: one of its placements is active."""
    workload = await change.writer.workload(workload_id)
    if workload is not None and (workload.failures or workload.not_before):
        await change.writer.put_workload(replace(workload, failures=0, not_before=None, why=None))
