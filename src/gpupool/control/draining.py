"""How far a node is drained: what is still there, and what each piece of it waits for. Pure, from a snapshot."""

from gpupool.contracts.nodes import DrainItem, DrainView
from gpupool.control.planning import explain
from gpupool.control.snapshot import Snapshot
from gpupool.fleet.nodes import Node
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.scheduling.port import Strategy


def drain_view(snapshot: Snapshot, node: Node, strategy: Strategy) -> DrainView:
    """Return what still runs on a node, oldest first, and why."""
    left = [_item(snapshot, placement, strategy) for placement in reversed(snapshot.live_on(node.id))]
    return DrainView(node=node.name, draining=node.draining, left=left)


def _item(snapshot: Snapshot, placement: Placement, strategy: Strategy) -> DrainItem:
    movable, detail = _waits_for(snapshot, placement, strategy)
    return DrainItem(
        placement_id=placement.id,
        workload=snapshot.workloads[placement.workload_id].name,
        state=placement.state,
        movable=movable,
        detail=detail,
    )


def _waits_for(snapshot: Snapshot, placement: Placement, strategy: Strategy) -> tuple[bool, str]:
    if placement.state is PlacementState.DRAINING:
        return True, "is ending"
    workload = snapshot.workloads[placement.workload_id]
    for other in snapshot.live_of(workload.id):
        node = snapshot.nodes[other.node_id]
        coming = other.state not in {PlacementState.ACTIVE, PlacementState.DRAINING}
        if coming and not node.draining and other.workload_version == workload.version:
            return True, f"waits for its replacement on {node.name}, which is {other.state.value}"
    decision = strategy.place(workload.spec, snapshot.fleet())
    if not decision.placed:
        return False, f"cannot move: {explain(decision.refusals)}"
    if workload.failures:
        return True, f"waits for another try elsewhere: {workload.why}"
    return True, f"is about to move to {snapshot.nodes[decision.node_id or ''].name}"
