"""What a market keeps: its catalog, the GPUs and instances of its miners, launches, jobs, and what was earned.

Plain values; times are seconds since 1970 (UTC). Every record has an id of its own and is replaced as a whole.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

TARGET_LIMIT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that chutes name."""

    id: str
    user: str
    name: str
    tag: str
    patch_version: str = "initial"
    chutes_version: str
    created_at: float

    @property
    def reference(self) -> str:
        """What chutes and runtimes call it: ``user/name:tag``, with a patch level where there is one."""
        patch = "" if self.patch_version == "initial" else f"-{self.patch_version}"
        return f"{self.user}/{self.name}:{self.tag}{patch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """A job that a chute offers."""

    name: str
    ports: tuple[tuple[str, int], ...] = ()
    """``(tcp | udp | http, port)``."""
    timeout_seconds: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chute:
    """An app of the catalog in its present version."""

    id: str
    user: str
    name: str
    version: str
    image_id: str
    filename: str
    ref_str: str
    code: str
    tagline: str = ""
    readme: str = ""
    gpu_count: int = 1
    min_vram_gb: int = 16
    supported_gpus: tuple[str, ...]
    """Catalog models, cheapest first."""
    concurrency: int = 1
    cords: tuple[dict[str, Any], ...] = ()
    """What it serves; a chute without any runs jobs only."""
    jobs: tuple[JobKind, ...] = ()
    preemptible: bool = True
    public: bool = True
    target: int = 1
    """How many instances are wanted, 0-1000."""
    multiplier: float
    """Compute units that a second of an instance is worth."""
    created_at: float
    updated_at: float
    bounty_since: float | None = None
    """Since when a bounty waits for whoever starts it; None while none does."""

    @property
    def job_only(self) -> bool:
        """Whether it serves nothing, and runs jobs only."""
        return not self.cords and bool(self.jobs)


class GpuState(StrEnum):
    """Where the verification of a GPU stands."""

    PENDING = "pending"
    VERIFIED = "verified"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU that a miner has made known."""

    id: str
    """Its uuid, 32 hexadecimal digits."""
    hotkey: str
    server_id: str
    server_name: str
    short_ref: str
    facts: dict[str, Any]
    """As it was registered."""
    host: str
    port: int
    seed: int
    task_id: str
    state: GpuState = GpuState.PENDING
    fault: str | None = None
    created_at: float
    verified_at: float | None = None


class LaunchState(StrEnum):
    """Where a launch stands."""

    ISSUED = "issued"
    CLAIMED = "claimed"
    VERIFIED = "verified"
    FAILED = "failed"

    @property
    def open(self) -> bool:
        """Whether an instance may still come of it."""
        return self in {LaunchState.ISSUED, LaunchState.CLAIMED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Leave that a miner got to start one instance."""

    id: str
    chute_id: str
    version: str
    hotkey: str
    job_id: str | None = None
    env_key: str
    seed: int
    state: LaunchState = LaunchState.ISSUED
    fault: str | None = None
    symmetric_key: str = ""
    """32 hexadecimal digits, made when it is claimed; secret."""
    claim: dict[str, Any] = field(default_factory=dict)
    """What the instance said of itself: host, ports, GPUs."""
    issued_at: float
    expires_at: float
    claimed_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A running copy of a chute, or a run of its job."""

    id: str
    chute_id: str
    version: str
    hotkey: str
    config_id: str
    job_id: str | None = None
    host: str
    port: int
    port_mappings: tuple[dict[str, Any], ...] = ()
    gpu_ids: tuple[str, ...]
    multiplier: float
    symmetric_key: str
    created_at: float
    verified_at: float
    activated_at: float | None = None
    billed_until: float | None = None
    """Up to when its time is in the ledger."""

    @property
    def active(self) -> bool:
        """Whether it serves."""
        return self.activated_at is not None


class JobState(StrEnum):
    """Where a job stands."""

    WAITING = "waiting"
    CLAIMED = "claimed"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing will become of it any more."""
        return self in {JobState.DONE, JobState.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of a job that somebody asked for."""

    id: str
    chute_id: str
    version: str
    method: str
    arguments: dict[str, Any]
    disk_gb: int = 10
    excluded: tuple[str, ...] = ()
    state: JobState = JobState.WAITING
    hotkey: str | None = None
    """Who has it."""
    instance_id: str | None = None
    tried: tuple[str, ...] = ()
    """Who has given it back: nobody gets one twice."""
    result: dict[str, Any] = field(default_factory=dict)
    created_at: float
    finished_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How an instance was used, as its gateway tells: sums since the instance began."""

    id: str
    """The instance's."""
    chute_id: str
    invocations: int = 0
    errors: int = 0
    rate_limited: int = 0
    compute_seconds: float = 0.0
    """Of requests, summed; several at once count each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earning:
    """A line of the ledger; lines are only ever added."""

    at: float
    kind: str
    """``compute`` or ``bounty``."""
    hotkey: str
    chute_id: str
    instance_id: str
    server_id: str
    short_ref: str
    gpus: int
    seconds: float = 0.0
    units: float
    """Compute units: seconds times the multiplier; for a bounty its amount."""
    usd: float
    """What the market pays for it."""
