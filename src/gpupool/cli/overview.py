"""The tables of the pool, shared by ``status``, ``node``, ``chute`` and ``up``."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

import typer

from gpupool.cli.output import age, print_table
from gpupool.contracts.control import DeviceView, NodeView, PlacementView, PoolView, WorkloadView
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import LIVE_STATES


def print_overview(pool: PoolView) -> None:
    """Print nodes, devices and workloads of the pool."""
    typer.echo(f"gpupool {pool.version}, control up {age(pool.started_at)}, {pool.last_event_seq} events")
    print_nodes(pool.nodes)
    print_devices(pool.devices)
    print_workloads(pool.workloads)


def print_nodes(nodes: Sequence[NodeView], empty: str = "none has joined yet") -> None:
    """Print nodes as a table; ``empty`` says why there is none."""
    print_table(
        "Nodes",
        ("NAME", "STATE", "GPUS", "PLACEMENTS", "SEEN", "REGION", "USD/H", "ADDRESS", "NOTES"),
        (
            (
                n.name,
                node_state(n),
                node_gpus(n),
                n.placements,
                age(n.seen_at),
                n.region,
                n.hourly_usd,
                n.address,
                node_notes(n),
            )
            for n in nodes
        ),
        empty,
        below=("NOTES",),
    )


def node_state(node: NodeView) -> str:
    """Return a node's state with what a person has laid on top."""
    marks = [mark for mark, on in (("locked", node.locked), ("draining", node.draining)) if on]
    return ", ".join([node.state.value, *marks])


def node_gpus(node: NodeView) -> str:
    """Return a node's GPUs, such as ``8 x h100``."""
    return ", ".join(f"{count} x {model}" for model, count in sorted(node.gpus.items()))


def node_notes(node: NodeView) -> str | None:
    """Return what a reader must know of a node beside the numbers: that it has other GPUs than announced."""
    if node.short_ref is None or node.short_ref in node.gpus or node.state is NodeState.JOINING:
        return None
    return f"announced with {node.short_ref}, and has {node_gpus(node) or 'no GPU'}"


def print_devices(devices: Sequence[DeviceView]) -> None:
    """Print devices as a table."""
    print_table(
        "Devices",
        ("NODE", "KIND", "MODEL", "NAME", "FREE MIB", "OF", "USD/H", "NOTES"),
        (
            (
                d.node,
                d.kind.value,
                d.short_ref,
                d.name,
                d.free_mib,
                d.memory_mib,
                d.hourly_usd,
                device_notes(d),
            )
            for d in devices
        ),
        "none",
        below=("NOTES",),
    )


def device_notes(device: DeviceView) -> str:
    """Return what a reader must know beside the numbers."""
    notes = list(device.failed_rules)
    if device.stand_in:
        notes.insert(0, "development: a CPU stands in")
    if not device.present:
        notes.insert(0, "gone since the last inventory")
    return "; ".join(notes)


def print_workloads(workloads: Sequence[WorkloadView], width: int | None = None) -> None:
    """Print workloads as a table."""
    print_table(
        "Workloads",
        ("NAME", "KIND", "VERSION", "ACTIVE", "WANTED", "STATE", "WHY"),
        (
            (w.name, w.kind, w.version, w.active, w.wanted, workload_state(w), workload_why(w))
            for w in workloads
        ),
        "none; deploy one with `gpupool chute deploy FILE`",
        below=("WHY",),
        width=width,
    )


def workload_why(workload: WorkloadView) -> str | None:
    """Return why a workload is not as wanted: what keeps it from being placed, or how the tries went."""
    if workload.active >= workload.wanted:
        return None
    newest = workload.placements[0] if workload.placements else None
    if newest is None or not workload.live or workload.last_failure is None:
        return workload.why
    return f"try {workload.failures + newest.restarts + 1}; last: {workload.last_failure}"


def workload_state(workload: WorkloadView) -> str:
    """Return one word for how a workload goes."""
    if workload.wanted == 0:
        return "off"
    if workload.active >= workload.wanted:
        return "active"
    newest = workload.placements[0] if workload.placements else None
    return newest.state.value if newest is not None and workload.live else "waiting"


def print_placements(placements: Sequence[PlacementView], width: int | None = None) -> None:
    """Print placements (users say deployments) as a table."""
    print_table(
        "Deployments",
        ("ID", "VERSION", "NODE", "STATE", "ADDRESS", "RESTARTS", "SINCE", "REASON"),
        (
            (p.id, p.version, p.node, p.state.value, p.address, p.restarts, age(p.changed_at), reason)
            for p, reason in _without_repetition(placements)
        ),
        "none yet",
        below=("REASON",),
        width=width,
    )


def _without_repetition(placements: Sequence[PlacementView]) -> Iterator[tuple[PlacementView, str | None]]:
    """Yield each placement with its reason; of final ones that ended alike in a row, the first with a count."""
    for _, group in groupby(placements, key=_likeness):
        alike = list(group)
        more = f" ({len(alike) - 1} more like it)" if len(alike) > 1 else ""
        yield alike[0], f"{alike[0].reason or ''}{more}"


def _likeness(placement: PlacementView) -> tuple[object, ...]:
    """Return what is the same of two that ended alike; numbers in reasons, such as seconds, do not count."""
    if placement.state in LIVE_STATES:
        return (placement.id,)
    return placement.state, placement.version, placement.node, re.sub(r"\d+", "", placement.reason or "")
