"""What control tells about an app, a node or a GPU, turned into sentences for ``gpupool why``. Pure."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpupool.core.errors import InvalidInputError, NotFoundError
from gpupool.fleet.devices import DeviceKind
from gpupool.fleet.nodes import NodeState

if TYPE_CHECKING:
    from gpupool.contracts.control import (
        DeviceView,
        EventView,
        NodeView,
        RefusalView,
        WhyView,
        WorkloadView,
    )

_MOVES = {f"node.{state.value}" for state in NodeState} | {"node.joined"}


def chute_lines(told: "WhyView", workload: "WorkloadView", nodes: Sequence["NodeView"]) -> list[str]:
    """Return how a workload stands, why it is not as wanted, and where another copy would go or who refuses it."""
    lines = [f"{told.workload}: {workload.active} of {workload.wanted} active, {workload.live} placed"]
    if told.why is not None:
        lines.append(f"as recorded: {told.why}")
    if told.not_before is not None:
        lines.append(f"no new attempt before {told.not_before:%H:%M:%S} UTC")
    if told.would_go_to is not None:
        name = next((node.name for node in nodes if node.id == told.would_go_to), told.would_go_to)
        return [*lines, f"another copy would go to {name}"]
    return [*lines, "no node takes another copy now:", *(f"  {line}" for line in _details(told.refusals))]


def node_lines(node: "NodeView", events: Iterable["EventView"]) -> list[str]:
    """Return since when and why a node is in its state, and what keeps new work from it; ``events``: its own."""
    last: dict[str, EventView] = {event.kind: event for event in events}
    moved = max((last[kind] for kind in _MOVES & last.keys()), key=lambda event: event.seq, default=None)
    lines = [f"{node.name}: {node.state.value}{_since(moved)}"]
    set_aside = {"node.locked": node.locked, "node.draining": node.draining}
    lines += [f"{kind.removeprefix('node.')}{_since(last.get(kind))}" for kind, on in set_aside.items() if on]
    if node.state is NodeState.READY and not any(set_aside.values()):
        lines.append(f"takes work; {node.placements} deployment(s) run there")
    elif node.state is not NodeState.REMOVED:
        lines.append(f"takes no new work; {node.placements} deployment(s) are there")
    if node.state is not NodeState.REMOVED and not node.connected:
        lines.append("its agent is not connected: see what it says on that machine")
    return lines


def _since(event: "EventView | None") -> str:
    if event is None:
        return ""
    facts = [str(event.data[key]) for key in ("reason", "by") if event.data.get(key)]
    return f" since {event.at:%Y-%m-%d %H:%M:%S} UTC" + (f" ({', '.join(facts)})" if facts else "")


def find_device(devices: Iterable["DeviceView"], asked: str) -> "DeviceView":
    """Return the device of that id, or the GPU at ``NODE:INDEX``; raise NotFoundError where there is none."""
    node, colon, index = asked.rpartition(":")
    if colon and not index.isdecimal():
        raise InvalidInputError(
            f"{asked} names no GPU.", remedy="Give its id, or NODE:INDEX such as gpu-1:0."
        )
    for device in devices:
        at = colon and device.kind is DeviceKind.GPU and (device.node, device.index) == (node, int(index))
        if at or device.id == asked:
            return device
    raise NotFoundError(f"There is no GPU {asked}.", remedy="See `gpupool node show NODE`.")


def gpu_lines(
    device: "DeviceView", workloads: Sequence["WorkloadView"], waiting: Sequence["WhyView"]
) -> list[str]:
    """Return what holds a device, or why it is idle: what each workload that waits says of it and of its node."""
    lines = [f"{device.short_ref or device.name} ({device.id}) of {device.node}"]
    if not device.present:
        return [*lines, "was not in its node's last inventory"]
    owners = {p.id: w.name for w in workloads for p in w.placements}
    lines += [
        f"held by {owners.get(c.placement_id, c.placement_id)} ({c.mode.value}, {c.mib} MiB)"
        for c in device.claims
    ]
    if device.claims:
        return lines
    if not waiting:
        return [*lines, "idle: every workload is as wanted"]
    for told in waiting:
        own = [r for r in told.refusals if r.subject in {device.id, device.node_id, "fleet"}]
        said = "; ".join(_details(own)) or (
            "its next copy goes to another node"
            if told.would_go_to
            else "this GPU would do, its node lacks more"
        )
        lines.append(f"idle, and {told.workload} waits: {said}")
    return lines


def _details(refusals: Iterable["RefusalView"]) -> list[str]:
    return list(dict.fromkeys(refusal.detail for refusal in refusals))
