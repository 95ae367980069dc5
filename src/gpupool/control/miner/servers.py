"""Nodes as the miner API shows them: servers with GPUs and deployments. Pure, from a snapshot."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from gpupool.catalog import Catalog
from gpupool.contracts.miner_api import (
    ChuteView,
    DeploymentView,
    DeviceInfo,
    GpuView,
    JobView,
    PurgedDeployment,
    ServerView,
)
from gpupool.contracts.purging import PurgedView
from gpupool.control.snapshot import Snapshot
from gpupool.fleet.claims import ClaimMode
from gpupool.fleet.devices import Device, DeviceKind, ProofState
from gpupool.fleet.jobs import Job
from gpupool.fleet.nodes import Node
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.fleet.workloads import WorkloadKind

_MIB: Final = 1024**2
_MIB_PER_GIB: Final = 1024
_KEPT_GIB: Final = 6
"""What a server keeps for itself before its memory is divided."""
_SHARE: Final = 0.8


def server_views(snapshot: Snapshot, nodes: Sequence[Node], catalog: Catalog) -> list[ServerView]:
    """Show some nodes."""
    live: dict[str, list[Placement]] = defaultdict(list)
    for placement in snapshot.live:
        if snapshot.workloads[placement.workload_id].spec.kind is WorkloadKind.CHUTE:
            live[placement.node_id].append(placement)
    return [_server_view(snapshot, node, live[node.id], catalog) for node in nodes]


def _server_view(snapshot: Snapshot, node: Node, live: Sequence[Placement], catalog: Catalog) -> ServerView:
    devices = [device for device in snapshot.devices.get(node.id, ()) if device.present]
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    held = {gpu: placement.id for placement in live for gpu in _gpus_of(snapshot, placement)}
    return ServerView(
        server_id=node.id,
        name=node.name,
        ip_address=node.address,
        status=node.state.value,
        created_at=node.joined_at,
        gpu_count=len(gpus),
        memory_per_gpu=_memory_per_gpu(devices, gpus),
        hourly_cost=(node.hourly_usd or 0.0) / max(1, len(gpus)),
        locked=node.locked,
        gpus=[_gpu_view(gpu, held.get(gpu.id), catalog) for gpu in gpus],
        deployments=[_deployment_view(snapshot, node, placement) for placement in live],
    )


def job_view(job: Job) -> JobView:
    """Show a job."""
    return JobView(
        job_id=job.id, deployment_id=job.placement_id, chute_id=job.workload_id, created_at=job.created_at
    )


def purged_deployment(purged: PurgedView) -> PurgedDeployment:
    """Show a deployment that is ending."""
    return PurgedDeployment(
        deployment_id=purged.deployment_id,
        chute_id=purged.chute_id,
        chute_name=purged.chute,
        server_id=purged.node_id,
        server_name=purged.node,
        gpu_count=purged.gpus,
    )


def _gpus_of(snapshot: Snapshot, placement: Placement) -> list[str]:
    held = snapshot.claims.get(placement.id, ())
    return [claim.device_id for claim in held if claim.mode is ClaimMode.EXCLUSIVE]


def _memory_per_gpu(devices: list[Device], gpus: list[Device]) -> int:
    """Return GiB of the node's memory for each GPU, by the rule of the original (chutes.md section 7, sizing)."""
    if not gpus:
        return 0
    # The cpu device has half the node's memory.
    whole = 2 * sum(device.memory_mib for device in devices if device.kind is DeviceKind.CPU)
    left = whole // _MIB_PER_GIB - _KEPT_GIB
    if left <= len(gpus):
        return 1
    return min(gpus[0].memory_mib // _MIB_PER_GIB, int(_SHARE * left / len(gpus)))


def _gpu_view(gpu: Device, placement_id: str | None, catalog: Catalog) -> GpuView:
    known = gpu.short_ref is not None and gpu.short_ref in catalog
    model = catalog.get(gpu.short_ref or "") if known else None
    return GpuView(
        gpu_id=gpu.id,
        server_id=gpu.node_id,
        deployment_id=placement_id,
        device_info=DeviceInfo(
            uuid=gpu.id,
            name=gpu.name,
            memory=gpu.memory_mib * _MIB,
            clock_rate=model.boost_mhz * 1000.0 if model else 0.0,
            processors=model.processors if model else 0,
        ),
        model_short_ref=gpu.short_ref,
        verified=gpu.proof is ProofState.PROVEN,
    )


def _deployment_view(snapshot: Snapshot, node: Node, placement: Placement) -> DeploymentView:
    workload = snapshot.workloads[placement.workload_id]
    version = str(placement.workload_version)
    return DeploymentView(
        deployment_id=placement.id,
        chute_id=workload.id,
        server_id=node.id,
        version=version,
        host=node.address,
        port=placement.port,
        active=placement.state is PlacementState.ACTIVE,
        stub=placement.state is PlacementState.PLANNED,
        created_at=placement.created_at,
        chute=ChuteView(chute_id=workload.id, name=workload.name, version=version),
        gpus=_gpus_of(snapshot, placement),
    )
