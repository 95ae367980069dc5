"""Rows to domain types and back.

Decoding is the hot half: list calls turn ten thousands of rows a second. So a decoder takes the columns by position
(in the order of `store.tables`; a look-up by name costs more than all the rest) and makes one constructor call. A
value that this version does not know (a damaged row, a hand-made change) is trouble with the store and says where.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Row

from gpupool.core.errors import StorageError
from gpupool.fleet.alarms import Alarm, Severity, Silence
from gpupool.fleet.api_tokens import ApiToken, Role
from gpupool.fleet.claims import Claim, ClaimMode
from gpupool.fleet.devices import Device, DeviceKind, ProofState
from gpupool.fleet.events import Event
from gpupool.fleet.hotkeys import OperatorHotkey
from gpupool.fleet.jobs import Job, JobState
from gpupool.fleet.join_tokens import JoinToken
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
    (
        key,
        name,
        public_key,
        address,
        state,
        locked,
        draining,
        hourly_usd,
        runtimes,
        session,
        boot_id,
        joined_at,
        seen_at,
        _,
        region,
        short_ref,
        pinned,
        removed_at,
    ) = row
    return Node(
        id=key,
        name=name,
        public_key=public_key,
        address=address,
        state=NodeState(state),
        locked=locked,
        draining=draining,
        hourly_usd=hourly_usd,
        runtimes=tuple(runtimes),
        session=session,
        boot_id=boot_id,
        joined_at=joined_at,
        seen_at=seen_at,
        region=region,
        short_ref=short_ref,
        pinned=frozenset(pinned),
        removed_at=removed_at,
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
        "region": node.region,
        "short_ref": node.short_ref,
        "pinned": sorted(node.pinned),
        "removed_at": node.removed_at,
    }


def decode_api_token(row: AnyRow) -> ApiToken:
    """Return the token in a row of ``api_tokens``."""
    key, name, digest, role, revoked, created_by, created_at, expires_at = row
    return ApiToken(
        id=key,
        name=name,
        digest=digest,
        role=Role(role),
        revoked=revoked,
        created_by=created_by,
        created_at=created_at,
        expires_at=expires_at,
    )


def decode_hotkey(row: AnyRow) -> OperatorHotkey:
    """Return the hotkey in a row of ``hotkeys``."""
    address, name, role, created_by, created_at = row
    return OperatorHotkey(
        address=address, name=name, role=Role(role), created_by=created_by, created_at=created_at
    )


def decode_join_token(row: AnyRow) -> JoinToken:
    """Return the token in a row of ``join_tokens``."""
    (
        key,
        digest,
        node_name,
        hourly_usd,
        region,
        short_ref,
        uses,
        used,
        revoked,
        created_by,
        created_at,
        expires_at,
    ) = row
    return JoinToken(
        id=key,
        digest=digest,
        node_name=node_name,
        hourly_usd=hourly_usd,
        region=region,
        short_ref=short_ref,
        uses=uses,
        used=used,
        revoked=revoked,
        created_by=created_by,
        created_at=created_at,
        expires_at=expires_at,
    )


def decode_device(row: AnyRow) -> Device:
    """Return the device in a row of ``devices``."""
    (
        key,
        node_id,
        kind,
        name,
        position,
        memory_mib,
        short_ref,
        failed_rules,
        hourly_usd,
        proof,
        stand_in,
        present,
    ) = row
    return Device(
        id=key,
        node_id=node_id,
        kind=DeviceKind(kind),
        name=name,
        index=position,
        memory_mib=memory_mib,
        short_ref=short_ref,
        failed_rules=tuple(failed_rules),
        hourly_usd=hourly_usd,
        proof=ProofState(proof),
        stand_in=stand_in,
        present=present,
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
    key, _, version, spec, wanted, deleted, failures, not_before, why, created_at = row
    return Workload(
        id=key,
        version=version,
        spec=decode_spec(spec),
        wanted=wanted,
        deleted=deleted,
        failures=failures,
        not_before=not_before,
        why=why,
        created_at=created_at,
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
    (
        key,
        workload_id,
        workload_version,
        node_id,
        state,
        _,
        reason,
        port,
        restarts,
        rate,
        created_at,
        changed_at,
    ) = row
    return Placement(
        id=key,
        workload_id=workload_id,
        workload_version=workload_version,
        node_id=node_id,
        state=PlacementState(state),
        reason=reason,
        port=port,
        restarts=restarts,
        rate=rate,
        created_at=created_at,
        changed_at=changed_at,
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
    placement_id, device_id, mode, mib, priority = row
    return Claim(
        placement_id=placement_id,
        device_id=device_id,
        mode=ClaimMode(mode),
        mib=mib,
        priority=priority,
    )


def decode_job(row: AnyRow) -> Job:
    """Return the job in a row of ``jobs``."""
    key, workload_id, placement_id, state, reason, created_at, changed_at = row
    return Job(
        id=key,
        workload_id=workload_id,
        placement_id=placement_id,
        state=JobState(state),
        reason=reason,
        created_at=created_at,
        changed_at=changed_at,
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


def decode_alarm(row: AnyRow) -> Alarm:
    """Return the alarm in a row of ``alarms``."""
    rule, subject, label, severity, why, since, until, told_at = row
    return Alarm(
        rule=rule,
        subject=subject,
        label=label,
        severity=Severity(severity),
        why=why,
        since=since,
        until=until,
        told_at=told_at,
    )


def encode_alarm(alarm: Alarm) -> dict[str, Any]:
    """Return the columns of an alarm."""
    return {**asdict(alarm), "severity": alarm.severity.value}


def decode_silence(row: AnyRow) -> Silence:
    """Return the silence in a row of ``silences``."""
    key, pattern, until, why, by, created_at = row
    return Silence(id=key, pattern=pattern, until=until, why=why, by=by, created_at=created_at)


def decode_event(row: AnyRow) -> Event:
    """Return the event in a row of ``events``."""
    seq, kind, subject, at, data, _ = row
    return Event(kind=kind, subject=subject, at=at, data=data, seq=seq)


def decode_command(row: AnyRow) -> QueuedCommand:
    """Return the command in a row of ``commands``."""
    node_id, seq, kind, payload = row
    return QueuedCommand(node_id=node_id, seq=seq, kind=kind, payload=payload)


def decode_id(row: AnyRow) -> str:
    """Return the id that is all there is in a row."""
    return str(row[0])


def decode_number(row: AnyRow) -> int:
    """Return the only column of a row, a whole number."""
    return int(row[0])
