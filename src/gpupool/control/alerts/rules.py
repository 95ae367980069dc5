"""What is worth waking somebody for, told from one look at the pool: pure, without memory.

How long a trouble must last before it is told is part of its rule; that it did is `alarms`' business. The words of a
trouble stay the same while it lasts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpupool.control.snapshot import Snapshot
from gpupool.fleet.alarms import Key, Severity
from gpupool.fleet.devices import DeviceKind
from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.fleet.workloads import Workload, WorkloadKind

FAILURES: Final = 3
"""So many failed deployments in a row are told."""
FOLLOWER_SECONDS: Final = 90.0
"""A follower of the endpoints feed asks at least once a minute."""
LEAST_FREE_SHARE: Final = 0.05
LEAST_FREE_BYTES: Final = 1024**3
_BEFORE_READY: Final = frozenset({PlacementState.PLANNED, PlacementState.STARTING, PlacementState.VERIFYING})


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of trouble."""

    title: str
    severity: Severity
    rise: float
    """Seconds for which it must last before people are told."""
    fall: float
    """Seconds for which it must stay away before it is over."""


NODE_SILENT: Final = "node_silent"
AGENT_STOPPED: Final = "agent_stopped"
GPU_LOST: Final = "gpu_lost"
CHUTE_DOWN: Final = "chute_down"
RECOMPUTE_DOWN: Final = "recompute_down"
INSTANCES_MISSING: Final = "instances_missing"
DEPLOYMENT_FAILING: Final = "deployment_failing"
FOLLOWER_GONE: Final = "follower_gone"
DISK_LOW: Final = "disk_low"
STORE_TROUBLE: Final = "store_trouble"

RULES: Final[Mapping[str, Rule]] = {
    NODE_SILENT: Rule("node silent", Severity.CRITICAL, 30.0, 30.0),
    AGENT_STOPPED: Rule("agent stopped", Severity.WARNING, 30.0, 10.0),
    GPU_LOST: Rule("GPU lost", Severity.CRITICAL, 60.0, 30.0),
    CHUTE_DOWN: Rule("chute down", Severity.CRITICAL, 60.0, 30.0),
    RECOMPUTE_DOWN: Rule("recompute server down", Severity.CRITICAL, 60.0, 30.0),
    INSTANCES_MISSING: Rule("instances missing", Severity.WARNING, 300.0, 60.0),
    DEPLOYMENT_FAILING: Rule("deployment fails again and again", Severity.WARNING, 0.0, 0.0),
    FOLLOWER_GONE: Rule("endpoints feed no longer followed", Severity.CRITICAL, 10.0, 0.0),
    DISK_LOW: Rule("control's disk nearly full", Severity.CRITICAL, 60.0, 300.0),
    STORE_TROUBLE: Rule("database trouble", Severity.CRITICAL, 30.0, 30.0),
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with one thing."""

    label: str
    """The thing's name, for people."""
    why: str


Troubles = Mapping[Key, Trouble]
Found = Iterator[tuple[Key, Trouble]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Room on the disk of control's state folder, in bytes."""

    folder: str
    total: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one look shows."""

    snapshot: Snapshot
    heard: Mapping[str, datetime]
    """When each node was heard last in this run of control."""
    left: frozenset[str]
    """Nodes whose agents said good-bye."""
    quiet: Mapping[str, float]
    """Follower of the endpoints feed -> seconds since it last asked."""
    disk: Disk | None = None


def troubles(sight: Sight) -> Troubles:
    """Return everything that is wrong now, except with the store, which has its own way of failing."""
    return dict(
        [
            *_nodes(sight),
            *_devices(sight.snapshot),
            *_workloads(sight.snapshot),
            *_followers(sight.quiet),
            *_disk(sight.disk),
        ]
    )


def store_trouble(why: str | None) -> Troubles:
    """Return what is wrong with the store; ``why``: how it failed last, None where it works."""
    return {(STORE_TROUBLE, "store"): Trouble("database", why)} if why is not None else {}


def _nodes(sight: Sight) -> Found:
    for node in sight.snapshot.nodes.values():
        if node.state is not NodeState.UNREACHABLE:
            continue
        if node.id in sight.left:
            yield (AGENT_STOPPED, node.id), Trouble(node.name, "its agent was stopped and said good-bye")
        else:
            heard = sight.heard.get(node.id, node.seen_at)
            yield (
                (NODE_SILENT, node.id),
                Trouble(node.name, f"not heard since {heard:%Y-%m-%d %H:%M:%S} UTC"),
            )


def _devices(snapshot: Snapshot) -> Found:
    absent = [device for devices in snapshot.devices.values() for device in devices if not device.present]
    for device in absent:
        node = snapshot.nodes.get(device.node_id)
        if device.kind is DeviceKind.GPU and node is not None and not node.removed:
            why = f"{device.name} is no longer shown by its node"
            yield (GPU_LOST, device.id), Trouble(f"{node.name} GPU {device.index}", why)


def _workloads(snapshot: Snapshot) -> Found:
    live: dict[str, list[Placement]] = {}
    for placement in snapshot.live:
        live.setdefault(placement.workload_id, []).append(placement)
    for workload in snapshot.wanted_workloads():
        if workload.wanted:
            yield from _workload(workload, live.get(workload.id, []), snapshot.nodes)


def _workload(workload: Workload, live: list[Placement], nodes: Mapping[str, Node]) -> Found:
    if workload.failures >= FAILURES:
        yield (
            (DEPLOYMENT_FAILING, workload.id),
            Trouble(
                workload.name,
                f"{FAILURES} or more times in a row; `gpupool chute show {workload.name}` tells more",
            ),
        )
    serving = sum(
        placement.state is PlacementState.ACTIVE and nodes[placement.node_id].state is NodeState.READY
        for placement in live
    )
    first_start = not workload.failures and any(
        placement.state in _BEFORE_READY and nodes[placement.node_id].state is NodeState.READY
        for placement in live
    )
    if serving >= workload.wanted or first_start:
        return
    if serving:
        yield (
            (INSTANCES_MISSING, workload.id),
            Trouble(workload.name, f"{serving} of {workload.wanted} serve"),
        )
        return
    rule = RECOMPUTE_DOWN if workload.spec.kind is WorkloadKind.RECOMPUTE else CHUTE_DOWN
    silent = sum(placement.state is PlacementState.ACTIVE for placement in live)
    why = "its node is silent" if silent else "no instance serves"
    yield (rule, workload.id), Trouble(workload.name, f"{workload.wanted} wanted, {why}")


def _followers(quiet: Mapping[str, float]) -> Found:
    for name, seconds in quiet.items():
        if seconds > FOLLOWER_SECONDS:
            yield (FOLLOWER_GONE, name), Trouble(name, "it has stopped asking; it is down or cut off")


def _disk(disk: Disk | None) -> Found:
    if disk is not None and disk.free < max(LEAST_FREE_BYTES, int(disk.total * LEAST_FREE_SHARE)):
        yield (DISK_LOW, "control"), Trouble("control", f"little room is left for {disk.folder}")
