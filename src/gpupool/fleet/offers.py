"""What a validator offers and knows: apps that pay, their images and jobs, bounties, and what of ours it has on record.

Ids are the validator's own; two validators may use the same ones, so whatever keeps these keeps the validator's name
with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A whole list of a validator's, by id."""

    items: Mapping[str, T]
    unusable: Mapping[str, str] = field(default_factory=dict)
    """What is there but cannot be used, with the reason: no offer, and yet not gone."""
    silent: bool = False
    """Nothing was listed, and the validator has no way to say so, or did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedChute:
    """An app that may be run for pay."""

    id: str
    version: str
    name: str
    image: str
    """``user/name:tag``, with a patch level behind it where there is one."""
    code: str
    filename: str
    ref_str: str
    """Which object of the code is the app: ``module:name``."""
    gpu_count: int
    """1-8 devices of one node."""
    supported_gpus: frozenset[str]
    """Catalog models (short refs) that may run it."""
    min_vram_gb: int | None = None
    """GB that each of them must have."""
    chutes_version: str | None = None
    job_only: bool = False
    """Runs jobs, and serves nothing."""
    preemptible: bool = True
    concurrency: int | None = None
    max_instances: int | None = None
    ports: tuple[tuple[str, int], ...] = ()
    """More ports that its jobs open: ``(tcp | udp | http, port)``."""
    tee: bool = False
    """Runs on attested machines only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedImage:
    """An image that some app needs."""

    id: str
    name: str
    """``user/name:tag``, with its patch level where it has one: what a chute names."""
    chutes_version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGpu:
    """A GPU of ours as the validator has it on record."""

    uuid: str
    short_ref: str | None
    verified_at: datetime | None
    fault: str | None
    """Why it was not verified."""
    server_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownInstance:
    """A deployment of ours as the validator has it on record."""

    id: str
    chute_id: str
    version: str
    config_id: str | None
    """Names the launch that made it; the pool's way to know its own."""
    host: str
    port: int
    active: bool
    verified_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedJob:
    """One run of an app's job."""

    id: str
    chute_id: str
    method: str
    gpu_count: int
    multiplier: float
    """Compute multiplier: what a second of it pays beside one unit."""
    excluded: frozenset[str] = frozenset()
    """Catalog models that may not run it."""
    disk_gb: int | None = None
    """Free disk that it needs; None where the validator did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How an app was used in the last hour, as far as the validator tells; None is unknown, and not zero."""

    chute_id: str
    invocations: int = 0
    compute_seconds: float = 0.0
    rate_limited: int = 0
    errors: int = 0
    instances: int | None = None
    multiplier: float | None = None
    usage_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many instances of an app the validator wants."""

    chute_id: str
    instances: int | None
    target: int | None
    scalable: bool
    """Whether one more would be taken now."""
    updating: bool
    """A rolling update is under way."""
    busy: float | None = None
    """Share of the capacity used, 0-1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounty:
    """A reward for whoever starts an app first."""

    chute_id: str
    amount: float
    """In the validator's own unit."""
    waiting_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingUpdate:
    """A change of version under way."""

    chute_id: str
    old_version: str
    new_version: str
    started_at: datetime | None
    permitted: Mapping[str, int]
    """By miner: how many instances of the new version it may start."""


@dataclass(frozen=True, slots=True)
class LaunchToken:
    """Leave to start one instance."""

    config_id: str
    token: str
    """Secret; for the instance only."""

    def __repr__(self) -> str:
        return f"LaunchToken(config_id={self.config_id!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModelRule:
    """What the validator takes as a GPU of one model."""

    short_ref: str
    hourly_usd: float | None
    memory_gb: int | None


@dataclass(frozen=True, slots=True)
class Registration:
    """Nodes that were made known to the validator."""

    task_id: str
    """To ask how their verification goes."""
    seed: int | None


@dataclass(frozen=True, slots=True)
class Verification:
    """How the verification of nodes stands."""

    state: str
    """``pending``, ``verified``, ``failed`` or ``error``."""
    detail: str = ""

    @property
    def over(self) -> bool:
        """Whether it has come to an end."""
        return self.state != "pending"
