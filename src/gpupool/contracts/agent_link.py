"""The agent link: what a node's agent and control say to each other.

The agent dials. ``POST /v1/agent/join`` (bearer join token) makes the node known under the agent's public key; every
later request is signed (`gpupool.core.keys`). ``GET /v1/agent/commands?after=SEQ`` streams NDJSON `Command` lines,
an empty line every 10 s as a sign of life. ``POST /v1/agent/reports`` carries `Report`, idempotent by ``report_id``.
On every connect the first report is complete: a placement of the node that it lacks is lost.
``POST /v1/agent/logs/{request_id}`` answers a ``logs`` command with plain text.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from gpupool.contracts.base import Id, Measure, Message, Name, Number, Text, WithoutNul
from gpupool.fleet.devices import DeviceKind
from gpupool.fleet.placements import PlacementState

MAX_REPORT_BYTES: Final = 4 * 1024 * 1024
MAX_LOG_BYTES: Final = 1024 * 1024
KEEPALIVE_SECONDS: Final = 10.0
HEARTBEAT_SECONDS: Final = 5.0
SILENCE_LIMIT_SECONDS: Final = 20.0
"""A node silent for longer is unreachable."""

_PublicKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]{43}=$")]
_Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.:_-]{1,253}$")]


class JoinRequest(Message):
    """A node makes itself known, or says again who it is; the same key is always the same node."""

    name: Name
    public_key: _PublicKey
    address: _Host
    """Where gateway and proxy reach this node's endpoints."""
    runtimes: list[Literal["process", "container", "kubernetes"]] = ["process"]
    hourly_usd: Annotated[float, Field(ge=0, le=10_000)] | None = None


class JoinReply(Message):
    """The id under which the node signs."""

    node_id: Id


class DeviceReport(Message):
    """One device of the node."""

    id: Id
    kind: DeviceKind
    name: Annotated[str, StringConstraints(min_length=1, max_length=200), WithoutNul]
    index: Annotated[int, Field(ge=0, le=1000)]
    memory_mib: Annotated[int, Field(ge=0, le=16_777_216)]
    short_ref: Annotated[str, StringConstraints(max_length=40), WithoutNul] | None = None
    failed_rules: Annotated[list[Text], Field(max_length=20)] = []
    hourly_usd: Measure | None = None
    stand_in: bool = False


class PlacementReport(Message):
    """What the node sees of one placement."""

    placement_id: Id
    state: PlacementState
    reason: Text | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    restarts: Number = 0
    rate: Measure | None = None
    memory_mib: Number | None = None


class Report(Message):
    """What the node has to say. An empty one is a heartbeat."""

    report_id: Id
    sent_at: datetime
    session: Id
    """Made anew by the agent at every connect; within one boot later ones sort after earlier ones."""
    boot_id: Annotated[str, StringConstraints(max_length=64), WithoutNul] = ""
    complete: bool = False
    """Whether devices and placements are everything there is; true in the first report of a session."""
    devices: Annotated[list[DeviceReport], Field(max_length=256)] | None = None
    placements: Annotated[list[PlacementReport], Field(max_length=4096)] = []
    acknowledged: Number | None = None
    """Commands up to this ``seq`` are kept safe by the node; control may forget them."""
    leaving: bool = False
    """An orderly stop: everything has ended, the node goes away until it connects again."""


class ReportReply(Message):
    """Control's answer to a report."""

    session_known: bool = True
    """False asks the agent for a complete report: control does not know this session (it has restarted)."""
    spread_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """Should the link break, come back at a moment of your own within so many seconds: how many others will, too."""


class StartOrder(Message):
    """Payload of a ``start`` command: everything the node needs."""

    placement_id: Id
    workload_id: Id
    workload_name: Name
    kind: Literal["chute", "recompute"]
    command: list[str]
    image: str | None = None
    env: dict[str, str] = {}
    port: int | None = None
    health_path: str = "/health"
    tls: bool = False
    device_ids: list[Id] = []
    """GPUs held exclusively; empty for a share of the cpu device."""
    memory_mib: int = 1024
    model_ref: str | None = None
    start_timeout_seconds: float = 300.0
    grace_seconds: float = 10.0
    max_restarts: int = 3


class StopOrder(Message):
    """Payload of a ``stop`` command."""

    placement_id: Id
    grace_seconds: float = 10.0


class LogsOrder(Message):
    """Payload of a ``logs`` command; the answer goes to ``/v1/agent/logs/{request_id}``."""

    request_id: Id
    placement_id: Id
    lines: Annotated[int, Field(ge=1, le=10_000)] = 200


class Command(Message):
    """One line of the command stream."""

    seq: Annotated[int, Field(ge=0)]
    """Per node, growing; 0 marks a command that is not kept (``logs``)."""
    kind: Literal["start", "stop", "logs"]
    payload: dict[str, Any]
