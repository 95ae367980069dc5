"""The tables of the pool, shared by ``status``, ``node``, ``chute`` and ``up``."""

from collections.abc import Sequence

import typer

from gpupool.cli.output import age, print_table
from gpupool.contracts.control import DeviceView, NodeView, PlacementView, PoolView, WorkloadView


def print_overview(pool: PoolView) -> None:
    """Print nodes, devices and workloads of the pool."""
    typer.echo(f"gpupool {pool.version}, control up {age(pool.started_at)}, {pool.last_event_seq} events")
    print_nodes(pool.nodes)
    print_devices(pool.devices)
    print_workloads(pool.workloads)


def print_nodes(nodes: Sequence[NodeView]) -> None:
    """Print nodes as a table."""
    print_table(
        "Nodes",
        ("NAME", "STATE", "ADDRESS", "DEVICES", "PLACEMENTS", "SEEN"),
        ((n.name, node_state(n), n.address, n.devices, n.placements, age(n.seen_at)) for n in nodes),
        "none has joined yet",
    )


def node_state(node: NodeView) -> str:
    """Return a node's state with what a person has laid on top."""
    marks = [mark for mark, on in (("locked", node.locked), ("draining", node.draining)) if on]
    return ", ".join([node.state.value, *marks])


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
    )


def device_notes(device: DeviceView) -> str:
    """Return what a reader must know beside the numbers."""
    notes = list(device.failed_rules)
    if device.stand_in:
        notes.insert(0, "development: a CPU stands in")
    if not device.present:
        notes.insert(0, "gone since the last inventory")
    return "; ".join(notes)


def print_workloads(workloads: Sequence[WorkloadView]) -> None:
    """Print workloads as a table."""
    print_table(
        "Workloads",
        ("NAME", "KIND", "VERSION", "ACTIVE", "WANTED", "STATE", "WHY"),
        ((w.name, w.kind, w.version, w.active, w.wanted, workload_state(w), w.why) for w in workloads),
        "none; deploy one with `gpupool chute deploy FILE`",
    )


def workload_state(workload: WorkloadView) -> str:
    """Return one word for how a workload goes."""
    if workload.wanted == 0:
        return "off"
    if workload.active >= workload.wanted:
        return "active"
    newest = workload.placements[0] if workload.placements else None
    return newest.state.value if newest is not None and workload.live else "waiting"


def print_placements(placements: Sequence[PlacementView]) -> None:
    """Print placements (users say deployments) as a table."""
    print_table(
        "Deployments",
        ("ID", "VERSION", "NODE", "STATE", "ADDRESS", "RESTARTS", "SINCE", "REASON"),
        (
            (p.id, p.version, p.node, p.state.value, p.address, p.restarts, age(p.changed_at), p.reason)
            for p in placements
        ),
        "none yet",
    )
