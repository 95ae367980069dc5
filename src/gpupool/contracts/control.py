"""The control API's messages: nodes, devices, workloads, placements, events, and the state of the pool."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from gpupool.contracts.base import Id, Input, Message, Name
from gpupool.contracts.spec import SpecFile
from gpupool.fleet.claims import ClaimMode
from gpupool.fleet.devices import DeviceKind, ProofState
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import PlacementState


class Health(Message):
    """``/healthz`` of every process: ours answers with the instance id it was started with."""

    status: str = "ok"
    role: str
    instance_id: str
    version: str


class ClaimView(Message):
    """What a placement holds of a device."""

    placement_id: Id
    device_id: Id
    mode: ClaimMode
    mib: int


class DeviceView(Message):
    """A device, with what is held of it."""

    id: Id
    node_id: Id
    node: Name
    kind: DeviceKind
    name: str
    index: int
    memory_mib: int
    free_mib: int
    short_ref: str | None
    failed_rules: list[str]
    hourly_usd: float | None
    proof: ProofState
    stand_in: bool
    present: bool
    claims: list[ClaimView]


class NodeView(Message):
    """A node of the pool."""

    id: Id
    name: Name
    address: str
    state: NodeState
    locked: bool
    draining: bool
    hourly_usd: float | None
    runtimes: list[str]
    connected: bool
    joined_at: datetime
    seen_at: datetime
    devices: int
    placements: int
    """Live ones."""
    region: str | None = None
    short_ref: str | None = None
    """GPU model announced when it was added."""
    gpus: dict[str, int] = {}
    """GPUs present, by catalog model or, outside the catalog, by name."""
    removed_at: datetime | None = None


class PlacementView(Message):
    """A placement (users say deployment)."""

    id: Id
    workload_id: Id
    workload: Name
    version: int
    node_id: Id
    node: Name
    state: PlacementState
    reason: str | None
    address: str | None
    port: int | None
    restarts: int
    claims: list[ClaimView]
    created_at: datetime
    changed_at: datetime


class WorkloadView(Message):
    """A workload, what is wanted of it and how that goes."""

    id: Id
    name: Name
    kind: str
    version: int
    spec: SpecFile
    wanted: int
    active: int
    live: int
    why: str | None
    """Why it is not placed as wanted; None when it is."""
    not_before: datetime | None
    failures: int = 0
    """Deployments failed in a row."""
    last_failure: str | None = None
    """Why the newest attempt failed, while another one is under way; None when all goes well."""
    created_at: datetime
    placements: list[PlacementView]
    """Live ones and the latest final ones, newest first."""


class DeployRequest(Input):
    """Wants a workload: makes it, or changes the one of that name."""

    spec: SpecFile


class DeployReply(Message):
    """What became of the request."""

    workload: WorkloadView
    created: bool
    changed: bool


class EventView(Message):
    """One thing that happened."""

    seq: int
    kind: str
    subject: Id
    at: datetime
    data: dict[str, Any]


class PoolView(Message):
    """The pool in one look, for ``gpupool status``."""

    version: str
    instance_id: str
    started_at: datetime
    nodes: list[NodeView]
    devices: list[DeviceView]
    workloads: list[WorkloadView]
    last_event_seq: int


class ScaleRequest(Input):
    """How many instances of a workload are wanted."""

    wanted: Annotated[int, Field(ge=0, le=1000)]


class RefusalView(Message):
    """One rule that a node or device did not pass for a workload."""

    subject: str
    """Id of the node or device; ``fleet`` where the whole fleet is meant."""
    rule: str
    """Stable name such as ``min_vram``."""
    detail: str


class WhyView(Message):
    """Why a workload is not placed as wanted, or where another instance of it would go."""

    workload: Name
    why: str | None
    """As last recorded; None when it is placed as wanted."""
    not_before: datetime | None
    """No new attempt before this moment."""
    would_go_to: Id | None
    """Node that would take another instance now; None where none would."""
    refusals: list[RefusalView]
    """What each node and device refuses now."""
