"""The next step for one workload: pure, from a snapshot, so that it can be tested move by move.

One step at a time: after it the state is read again. Too few instances: place one. A changed spec: place the new
version beside the old one and drain the old when the new is active; where both do not fit, drain an old one first,
but only if the new one would fit then, since an instance of the old version is better than none. A draining node is
left the same way: what runs there ends once its replacement elsewhere is active, and stays as long as there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpupool.control.snapshot import Snapshot
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.fleet.workloads import Workload
from gpupool.scheduling.port import Decision, Refusal, Strategy

_SHOWN_REFUSALS = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Put a new placement where the decision says."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Drain:
    """Let a placement end."""

    placement: Placement
    reason: str


@dataclass(frozen=True, slots=True)
class Explain:
    """Note why the workload is not placed as wanted; None when it is."""

    why: str | None


Step = Place | Drain | Explain


def next_step(snapshot: Snapshot, workload: Workload, strategy: Strategy, now: datetime) -> Step | None:
    """Return the next step towards what is wanted of ``workload``, or None when there is nothing to do now."""
    wanted = 0 if workload.deleted else workload.wanted
    staying = [
        placement
        for placement in snapshot.live_of(workload.id)
        if placement.state is not PlacementState.DRAINING
    ]
    old = [placement for placement in staying if placement.workload_version != workload.version]
    moving = [
        placement
        for placement in staying
        if placement not in old and snapshot.nodes[placement.node_id].draining
    ]
    settled = [placement for placement in staying if placement not in old and placement not in moving]
    if len(settled) > wanted:
        surplus = min(settled, key=_serves)
        return Drain(surplus, "deleted" if workload.deleted else f"{wanted} wanted")
    active = sum(placement.state is PlacementState.ACTIVE for placement in settled)
    replaced = [*reversed(old), *reversed(moving)]
    if len(replaced) > wanted - active:
        first = min(replaced, key=_serves)
        return Drain(first, _why_drained(snapshot, workload, first))
    if len(settled) < wanted:
        return _place(snapshot, workload, strategy, now, old, moving)
    return Explain(None) if workload.why is not None and not workload.backs_off(now) else None


def _serves(placement: Placement) -> bool:
    """Tell what goes last: one that serves now."""
    return placement.state is PlacementState.ACTIVE


def _why_drained(snapshot: Snapshot, workload: Workload, placement: Placement) -> str:
    if workload.deleted:
        return "deleted"
    if placement.workload_version != workload.version:
        return f"replaced by version {workload.version}"
    return f"its node {snapshot.nodes[placement.node_id].name} is drained"


def _place(
    snapshot: Snapshot,
    workload: Workload,
    strategy: Strategy,
    now: datetime,
    old: Sequence[Placement],
    moving: Sequence[Placement],
) -> Step | None:
    if workload.backs_off(now):
        return None
    decision = strategy.place(workload.spec, snapshot.fleet())
    if decision.placed:
        return Place(decision)
    leaving = any(p.state is PlacementState.DRAINING for p in snapshot.live_of(workload.id))
    if old and not leaving:
        room = strategy.place(workload.spec, snapshot.fleet(without={old[-1].id}))
        if room.placed:
            return Drain(old[-1], f"makes room for version {workload.version}")
    why = explain(decision.refusals)
    if moving:
        nodes = sorted({snapshot.nodes[placement.node_id].name for placement in moving})
        why = f"cannot leave {', '.join(nodes)}, which drains: {why}"[:2000]
    return Explain(why) if why != workload.why else None


def explain(refusals: Sequence[Refusal]) -> str:
    """Return the refusals in one line: the first of each rule, in the order of the rules' first appearance."""
    first: dict[str, Refusal] = {}
    for refusal in refusals:
        first.setdefault(refusal.rule, refusal)
    if "no_gpu" in first:
        first = {rule: refusal for rule, refusal in first.items() if rule not in {"kind", "gpu_count"}}
    by_weight = sorted(
        first.values(), key=lambda refusal: refusal.rule in {"kind", "gpu_count", "cpu", "absent"}
    )
    shown = "; ".join(refusal.detail for refusal in by_weight[:_SHOWN_REFUSALS])
    return f"no node takes it: {shown}"[:2000]
