"""Rows to domain types and back.

Decoding is the hot half: list calls turn thousands of rows a second, so each decoder is one constructor call. A
value that this version does not know (a damaged row, a hand-made change) is trouble with the store and says where.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Row

from gpupool.core.errors import StorageError
from gpupool.fleet.claims import Claim, ClaimMode
from gpupool.fleet.devices import Device, DeviceKind, ProofState
from gpupool.fleet.events import Event
from gpupool.fleet.jobs import Job, JobState
from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.fleet.ports.store import QueuedCommand
from gpupool.fleet.workloads import Protocol, Selector, Workload, WorkloadKind, WorkloadSpec

AnyRow = Row[*tuple[Any, ...]]
_TUPLES: Final = ("command", "models")
_SETS: Final = ("include", "exclude")


@contextlib.contextmanager
def readable(noun: str) -> Iterator[None]:
    """Raise StorageError, naming the kind of row, where a stored value cannot be read."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"A stored {noun} cannot be read: {error}.",
            remedy="Restore the newest backup (`pool.db.backup-*` in the data folder).",
        ) from error


def decode_node(row: AnyRow) -> Node:
    """Return the node in a row of ``nodes``."""
    return Node(
        id=row.id,
        name=row.name,
        public_key=row.public_key,
        address=row.address,
        state=NodeState(row.state),
        locked=row.locked,
        draining=row.draining,
        hourly_usd=row.hourly_usd,
        runtimes=tuple(row.runtimes),
        session=row.session,
        boot_id=row.boot_id,
        joined_at=row.joined_at,
        seen_at=row.seen_at,
    )


def encode_node(node: Node) -> dict[str, Any]:
    """Return the columns of a node; its command counter is not among them."""
    return {
        "id": node.id,
        "name": node.name,
        "public_key": node.public_key,
        "address": node.address,
        "state": node.state.value,
        "locked": node.locked,
        "draining": node.draining,
        "hourly_usd": node.hourly_usd,
        "runtimes": list(node.runtimes),
        "session": node.session,
        "boot_id": node.boot_id,
        "joined_at": node.joined_at,
        "seen_at": node.seen_at,
    }


def decode_device(row: AnyRow) -> Device:
    """Return the device in a row of ``devices``."""
    return Device(
        id=row.id,
        node_id=row.node_id,
        kind=DeviceKind(row.kind),
        name=row.name,
        index=row.position,
        memory_mib=row.memory_mib,
        short_ref=row.short_ref,
        failed_rules=tuple(row.failed_rules),
        hourly_usd=row.hourly_usd,
        proof=ProofState(row.proof),
        stand_in=row.stand_in,
        present=row.present,
    )


def encode_device(device: Device) -> dict[str, Any]:
    """Return the columns of a device."""
    return {
        "id": device.id,
        "node_id": device.node_id,
        "kind": device.kind.value,
        "name": device.name,
        "position": device.index,
        "memory_mib": device.memory_mib,
        "short_ref": device.short_ref,
        "failed_rules": list(device.failed_rules),
        "hourly_usd": device.hourly_usd,
        "proof": device.proof.value,
        "stand_in": device.stand_in,
        "present": device.present,
    }


def decode_spec(value: dict[str, Any]) -> WorkloadSpec:
    """Return the spec kept as JSON; a field that a later version added takes its default."""
    selector = {**value["selector"]}
    for name in _SETS:
        selector[name] = frozenset(selector[name])
    fields = {**value, "selector": Selector(**selector)}
    for name in _TUPLES:
        fields[name] = tuple(fields[name])
    fields["kind"] = WorkloadKind(value["kind"])
    fields["protocol"] = Protocol(value["protocol"])
    return WorkloadSpec(**fields)


def encode_spec(spec: WorkloadSpec) -> dict[str, Any]:
    """Return the spec as JSON, the same text for equal specs."""
    value = asdict(spec)
    for name in _SETS:
        value["selector"][name] = sorted(value["selector"][name])
    return {**value, "kind": spec.kind.value, "protocol": spec.protocol.value, "env": dict(spec.env)}


def decode_workload(row: AnyRow) -> Workload:
    """Return the workload in a row of ``workloads``."""
    return Workload(
        id=row.id,
        version=row.version,
        spec=decode_spec(row.spec),
        wanted=row.wanted,
        deleted=row.deleted,
        failures=row.failures,
        not_before=row.not_before,
        why=row.why,
        created_at=row.created_at,
    )


def encode_workload(workload: Workload) -> dict[str, Any]:
    """Return the columns of a workload."""
    return {
        "id": workload.id,
        "name": workload.name,
        "version": workload.version,
        "spec": encode_spec(workload.spec),
        "wanted": workload.wanted,
        "deleted": workload.deleted,
        "failures": workload.failures,
        "not_before": workload.not_before,
        "why": workload.why,
        "created_at": workload.created_at,
    }


def decode_placement(row: AnyRow) -> Placement:
    """Return the placement in a row of ``placements``."""
    return Placement(
        id=row.id,
        workload_id=row.workload_id,
        workload_version=row.workload_version,
        node_id=row.node_id,
        state=PlacementState(row.state),
        reason=row.reason,
        port=row.port,
        restarts=row.restarts,
        rate=row.rate,
        created_at=row.created_at,
        changed_at=row.changed_at,
    )


def encode_placement(placement: Placement) -> dict[str, Any]:
    """Return the columns of a placement."""
    return {
        "id": placement.id,
        "workload_id": placement.workload_id,
        "workload_version": placement.workload_version,
        "node_id": placement.node_id,
        "state": placement.state.value,
        "live": placement.live,
        "reason": placement.reason,
        "port": placement.port,
        "restarts": placement.restarts,
        "rate": placement.rate,
        "created_at": placement.created_at,
        "changed_at": placement.changed_at,
    }


def decode_claim(row: AnyRow) -> Claim:
    """Return the claim in a row of ``claims``."""
    return Claim(
        placement_id=row.placement_id,
        device_id=row.device_id,
        mode=ClaimMode(row.mode),
        mib=row.mib,
        priority=row.priority,
    )


def decode_job(row: AnyRow) -> Job:
    """Return the job in a row of ``jobs``."""
    return Job(
        id=row.id,
        workload_id=row.workload_id,
        placement_id=row.placement_id,
        state=JobState(row.state),
        reason=row.reason,
        created_at=row.created_at,
        changed_at=row.changed_at,
    )


def encode_job(job: Job) -> dict[str, Any]:
    """Return the columns of a job."""
    return {
        "id": job.id,
        "workload_id": job.workload_id,
        "placement_id": job.placement_id,
        "state": job.state.value,
        "reason": job.reason,
        "created_at": job.created_at,
        "changed_at": job.changed_at,
    }


def decode_event(row: AnyRow) -> Event:
    """Return the event in a row of ``events``."""
    return Event(kind=row.kind, subject=row.subject, at=row.at, data=row.data, seq=row.seq)


def decode_command(row: AnyRow) -> QueuedCommand:
    """Return the command in a row of ``commands``."""
    return QueuedCommand(node_id=row.node_id, seq=row.seq, kind=row.kind, payload=row.payload)


def decode_number(row: AnyRow) -> int:
    """Return the only column of a row, a whole number."""
    return int(row[0])
