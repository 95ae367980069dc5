"""Records as the API shows them."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from gpupool import __version__
from gpupool.contracts.control import (
    ClaimView,
    DeviceView,
    EventView,
    NodeView,
    PlacementView,
    PoolView,
    WorkloadView,
)
from gpupool.contracts.nodes import JoinTokenView
from gpupool.contracts.spec import SpecFile
from gpupool.control.links import Links
from gpupool.control.pool import Pool
from gpupool.control.snapshot import Snapshot
from gpupool.core.secret_names import HIDDEN, is_secret_name
from gpupool.fleet.claims import Claim, ClaimMode
from gpupool.fleet.devices import Device, DeviceKind
from gpupool.fleet.events import Event
from gpupool.fleet.join_tokens import JoinToken
from gpupool.fleet.nodes import Node
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.fleet.workloads import Protocol, Workload

SHOWN_FINAL = 5
"""Final placements shown with a workload."""


def claim_view(claim: Claim) -> ClaimView:
    """Show a claim."""
    return ClaimView(
        placement_id=claim.placement_id, device_id=claim.device_id, mode=claim.mode, mib=claim.mib
    )


def event_view(event: Event) -> EventView:
    """Show an event."""
    return EventView(
        seq=event.seq, kind=event.kind, subject=event.subject, at=event.at, data=dict(event.data)
    )


def node_views(snapshot: Snapshot, links: Links) -> list[NodeView]:
    """Show the nodes that are part of the pool, oldest first."""
    live = Counter(placement.node_id for placement in snapshot.live)
    return [node_view_of(node, snapshot, links, live[node.id]) for node in snapshot.members()]


def node_view(node: Node, snapshot: Snapshot, links: Links) -> NodeView:
    """Show one node."""
    return node_view_of(node, snapshot, links, len(snapshot.live_on(node.id)))


def node_view_of(node: Node, snapshot: Snapshot, links: Links, live: int) -> NodeView:
    """Show a node on which ``live`` placements are."""
    link = links.get(node.id)
    devices = [device for device in snapshot.devices.get(node.id, ()) if device.present]
    gpus = Counter(device.short_ref or device.name for device in devices if device.kind is DeviceKind.GPU)
    return NodeView(
        id=node.id,
        name=node.name,
        address=node.address,
        state=node.state,
        locked=node.locked,
        draining=node.draining,
        hourly_usd=node.hourly_usd,
        runtimes=list(node.runtimes),
        connected=links.connected(node.id),
        joined_at=node.joined_at,
        seen_at=link.heard_at if link else node.seen_at,
        devices=len(devices),
        placements=live,
        region=node.region,
        short_ref=node.short_ref,
        gpus=dict(gpus),
        removed_at=node.removed_at,
    )


def join_token_view(token: JoinToken, now: datetime) -> JoinTokenView:
    """Show a join token, of which nobody can join."""
    return JoinTokenView(
        id=token.id,
        name=token.node_name,
        hourly_usd=token.hourly_usd,
        region=token.region,
        short_ref=token.short_ref,
        uses=token.uses,
        used=token.used,
        usable=token.refusal(now) is None,
        why_not=token.refusal(now),
        created_by=token.created_by,
        created_at=token.created_at,
        expires_at=token.expires_at,
    )


def pairs_of_devices(snapshot: Snapshot) -> list[tuple[Device, Node]]:
    """Return all devices with their nodes, by node and index."""
    return [(device, node) for node in snapshot.members() for device in snapshot.devices.get(node.id, ())]


def device_views(
    snapshot: Snapshot, devices: Sequence[tuple[Device, Node]] | None = None
) -> list[DeviceView]:
    """Show devices, all of them unless given."""
    held: dict[str, list[Claim]] = defaultdict(list)
    for claims in snapshot.claims.values():
        for claim in claims:
            held[claim.device_id].append(claim)
    shown = pairs_of_devices(snapshot) if devices is None else devices
    return [_device_view(device, node, held[device.id]) for device, node in shown]


def _device_view(device: Device, node: Node, claims: Sequence[Claim]) -> DeviceView:
    exclusive = any(claim.mode is ClaimMode.EXCLUSIVE for claim in claims)
    return DeviceView(
        id=device.id,
        node_id=node.id,
        node=node.name,
        kind=device.kind,
        name=device.name,
        index=device.index,
        memory_mib=device.memory_mib,
        free_mib=0 if exclusive else max(0, device.memory_mib - sum(claim.mib for claim in claims)),
        short_ref=device.short_ref,
        failed_rules=list(device.failed_rules),
        hourly_usd=device.hourly_usd,
        proof=device.proof,
        stand_in=device.stand_in,
        present=device.present,
        claims=[claim_view(claim) for claim in claims],
    )


def placement_view(placement: Placement, snapshot: Snapshot) -> PlacementView:
    """Show a placement (of the snapshot, or older)."""
    node, workload = snapshot.nodes[placement.node_id], snapshot.workloads[placement.workload_id]
    host = f"[{node.address}]" if ":" in node.address else node.address
    return PlacementView(
        id=placement.id,
        workload_id=placement.workload_id,
        workload=workload.name,
        version=placement.workload_version,
        node_id=node.id,
        node=node.name,
        state=placement.state,
        # What an active one has got over is told by the events alone.
        reason=None if placement.state is PlacementState.ACTIVE else placement.reason,
        address=None if placement.port is None else f"{host}:{placement.port}",
        port=placement.port,
        restarts=placement.restarts,
        claims=[claim_view(claim) for claim in snapshot.claims.get(placement.id, ())],
        created_at=placement.created_at,
        changed_at=placement.changed_at,
    )


def by_workload(placements: Sequence[Placement]) -> Mapping[str, Sequence[Placement]]:
    """Group placements by workload, keeping their order."""
    groups: dict[str, list[Placement]] = defaultdict(list)
    for placement in placements:
        groups[placement.workload_id].append(placement)
    return groups


def workload_views(snapshot: Snapshot, workloads: Sequence[Workload]) -> list[WorkloadView]:
    """Show workloads with their live placements and the latest final ones, newest first."""
    live, final = by_workload(snapshot.live), by_workload(snapshot.final)
    return [
        _workload_view(
            workload, [*live.get(workload.id, ()), *final.get(workload.id, ())[:SHOWN_FINAL]], snapshot
        )
        for workload in workloads
    ]


def _workload_view(workload: Workload, placements: Sequence[Placement], snapshot: Snapshot) -> WorkloadView:
    return WorkloadView(
        id=workload.id,
        name=workload.name,
        kind=workload.spec.kind.value,
        version=workload.version,
        spec=spec_file(workload),
        wanted=0 if workload.deleted else workload.wanted,
        active=sum(placement.state is PlacementState.ACTIVE for placement in placements),
        live=sum(placement.live for placement in placements),
        why=workload.why,
        not_before=workload.not_before,
        failures=workload.failures,
        last_failure=_last_failure(workload, placements),
        created_at=workload.created_at,
        placements=[placement_view(placement, snapshot) for placement in placements],
    )


def _last_failure(workload: Workload, placements: Sequence[Placement]) -> str | None:
    """Return why the last try failed, in place or in another placement, as long as too few are active."""
    if sum(placement.state is PlacementState.ACTIVE for placement in placements) >= workload.wanted:
        return None
    current = [placement for placement in placements if placement.workload_version == workload.version]
    again = next((p for p in current if p.live and p.restarts and p.state is not PlacementState.ACTIVE), None)
    if again is not None and again.reason:
        return again.reason
    failed = next((placement for placement in current if placement.state is PlacementState.FAILED), None)
    return failed.reason if failed is not None and workload.failures else None


def spec_file(workload: Workload) -> SpecFile:
    """Return the spec as a person would write it, with secrets hidden."""
    spec = workload.spec
    return SpecFile(
        name=spec.name,
        kind=spec.kind.value,
        command=list(spec.command),
        image=spec.image,
        port=spec.port,
        health=spec.health_path,
        tls=spec.tls,
        openai=spec.protocol is Protocol.OPENAI,
        models=list(spec.models),
        gpu_count=spec.selector.gpu_count,
        min_vram_gb=spec.selector.min_vram_mib / 1024,
        include=sorted(spec.selector.include),
        exclude=sorted(spec.selector.exclude),
        max_price=spec.selector.max_hourly_usd,
        env={name: HIDDEN if is_secret_name(name) else value for name, value in spec.env.items()},
        concurrency=spec.concurrency,
        model=spec.model_ref,
        memory_mb=spec.memory_mib,
        replicas=workload.wanted,
        private=spec.private,
        start_timeout=spec.start_timeout_seconds,
        grace=spec.grace_seconds,
        max_restarts=spec.max_restarts,
    )


def pool_view(snapshot: Snapshot, pool: Pool) -> PoolView:
    """Show the pool in one look."""
    return PoolView(
        version=__version__,
        instance_id=pool.instance_id,
        started_at=pool.started_at,
        nodes=node_views(snapshot, pool.links),
        devices=device_views(snapshot),
        workloads=workload_views(snapshot, snapshot.wanted_workloads()),
        last_event_seq=snapshot.seq,
    )
