"""Things of a pool for tests: valid by default, each with an id of its own, and a migrated database to keep them in."""

import functools
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpupool.core.ids import new_id
from gpupool.fleet.alarms import Alarm, Severity, Silence
from gpupool.fleet.api_tokens import ApiToken, Role
from gpupool.fleet.claims import Claim, ClaimMode
from gpupool.fleet.devices import Device, DeviceKind
from gpupool.fleet.events import Event
from gpupool.fleet.jobs import Job
from gpupool.fleet.join_tokens import JoinToken, digest_of
from gpupool.fleet.nodes import Node
from gpupool.fleet.placements import Placement
from gpupool.fleet.ports.store import Writer
from gpupool.fleet.workloads import Protocol, Selector, Workload, WorkloadKind, WorkloadSpec
from gpupool.store.migrate import migrate

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def later(seconds: float) -> datetime:
    """Return the moment ``seconds`` after noon."""
    return NOON + timedelta(seconds=seconds)


def a_node(**changes: Any) -> Node:
    """Return a node that has just joined."""
    node_id = new_id("node")
    values = {"id": node_id, "name": node_id, "public_key": f"key of {node_id}", "address": "10.0.0.7"}
    return Node(**{**values, "joined_at": NOON, "seen_at": NOON, **changes})


def a_join_token(secret: str, **changes: Any) -> JoinToken:
    """Return a token that is worth one join within half a minute after noon."""
    values = {"id": new_id("jt"), "digest": digest_of(secret), "created_at": NOON, "expires_at": later(30)}
    return JoinToken(**{**values, **changes})


def an_api_token(secret: str, **changes: Any) -> ApiToken:
    """Return a token of a viewer that is good until it is revoked."""
    token_id = new_id("at")
    values = {
        "id": token_id,
        "name": token_id,
        "digest": digest_of(secret),
        "role": Role.VIEWER,
        "created_at": NOON,
    }
    return ApiToken(**{**values, **changes})


def an_alarm(**changes: Any) -> Alarm:
    """Return an alarm about a silent node."""
    values = {"rule": "node_silent", "subject": "node-1", "label": "gpu-1", "severity": Severity.CRITICAL}
    return Alarm(**{**values, "why": "not heard", "since": NOON, **changes})


def a_silence(**changes: Any) -> Silence:
    """Return a silence on every GPU node for half a minute after noon."""
    values = {"id": new_id("sil"), "pattern": "gpu-*", "until": later(30), "why": "moving", "by": "ann"}
    return Silence(**{**values, "created_at": NOON, **changes})


def a_device(node_id: str, **changes: Any) -> Device:
    """Return a GPU of 24 GiB."""
    values = {
        "id": new_id("dev"),
        "node_id": node_id,
        "kind": DeviceKind.GPU,
        "name": "NVIDIA L4",
        "index": 0,
    }
    return Device(**{**values, "memory_mib": 24_576, **changes})


def a_spec(**changes: Any) -> WorkloadSpec:
    """Return the spec of a small chat chute."""
    values = {"name": new_id("wl"), "kind": WorkloadKind.CHUTE, "protocol": Protocol.OPENAI}
    return WorkloadSpec(**{**values, "command": ("serve", "--port", "{port}"), **changes})


def a_full_spec(name: str = "everything") -> WorkloadSpec:
    """Return a spec with no field at its default."""
    return a_spec(
        name=name,
        kind=WorkloadKind.RECOMPUTE,
        protocol=Protocol.RECOMPUTE,
        command=(),
        image="registry.example/chat:1",
        selector=Selector(
            gpu_count=2,
            min_vram_mib=8192,
            include=frozenset({"l4", "a10"}),
            exclude=frozenset({"t4"}),
            max_hourly_usd=0.25,
        ),
        port=30123,
        health_path="/ready",
        models=("small", "größer"),
        env={"LEVEL": "3", "NAME": "值"},
        concurrency=8,
        model_ref="org/weights",
        memory_mib=4096,
        private=False,
        start_timeout_seconds=12.5,
        grace_seconds=1.5,
        max_restarts=0,
    )


def a_workload(**changes: Any) -> Workload:
    """Return a workload that wants one instance."""
    values = {"id": new_id("wl"), "version": 1, "created_at": NOON}
    return Workload(**{**values, **({} if "spec" in changes else {"spec": a_spec()}), **changes})


def a_placement(workload_id: str, node_id: str, **changes: Any) -> Placement:
    """Return a placement that is only planned."""
    values = {"id": new_id("pl"), "workload_id": workload_id, "workload_version": 1, "node_id": node_id}
    return Placement(**{**values, "created_at": NOON, "changed_at": NOON, **changes})


def a_job(workload_id: str, **changes: Any) -> Job:
    """Return a job in the queue."""
    values = {"id": new_id("job"), "workload_id": workload_id, "created_at": NOON, "changed_at": NOON}
    return Job(**{**values, **changes})


def an_event(kind: str = "node.ready", subject: str = "node-x", **data: Any) -> Event:
    """Return an event that the store has not numbered yet."""
    return Event(kind=kind, subject=subject, at=NOON, data=data)


def shared(placement: Placement, device: Device, mib: int, priority: int = 0) -> Claim:
    """Return a shared claim."""
    return Claim(
        placement_id=placement.id,
        device_id=device.id,
        mode=ClaimMode.SHARED,
        mib=mib,
        priority=priority,
    )


def exclusive(placement: Placement, device: Device) -> Claim:
    """Return an exclusive claim on all of a device."""
    return Claim(
        placement_id=placement.id, device_id=device.id, mode=ClaimMode.EXCLUSIVE, mib=device.memory_mib
    )


async def put_ground(writer: Writer) -> tuple[Node, Device, Workload]:
    """Keep a node with one GPU, and a workload, and return them."""
    node = a_node()
    device = a_device(node.id)
    workload = a_workload()
    await writer.put_node(node)
    await writer.put_device(device)
    await writer.put_workload(workload)
    return node, device, workload


@functools.cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.db"
        migrate(path)
        return path.read_bytes()


def new_database(folder: Path, name: str = "pool.db") -> Path:
    """Make a migrated, empty database in ``folder`` and return its path."""
    path = folder / name
    path.write_bytes(_migrated())
    return path
