"""What the validator sends, as far as the pool uses it: tolerant of what is new, strict about what is used.

Source: chutes.md sections 2.2 and 2.3. Ids and names become file names, labels and log lines here, so their alphabet is
held to what the validator itself gives out.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from gpupool.fleet.offers import (
    Bounty,
    Capacity,
    Demand,
    GpuModelRule,
    KnownGpu,
    KnownInstance,
    OfferedChute,
    OfferedImage,
    RollingUpdate,
)

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
ShortRef = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,40}$")]
ImageName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}(/[a-zA-Z0-9._-]{1,200}){1,3}(:[\w.-]{1,128})?$"
    ),
]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")]
RefStr = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,200}:[A-Za-z0-9_]{1,200}$")]
Text = Annotated[str, StringConstraints(max_length=2000)]
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
OrNothing = BeforeValidator(lambda value: value or None)
"""An empty text stands for nothing."""


class Item(BaseModel):
    """Anything of the validator's."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class NodeSelector(Item):
    """Which machines may run a chute."""

    gpu_count: Annotated[int, Field(ge=1, le=8)] = 1
    min_vram_gb_per_gpu: Annotated[int, Field(ge=0, le=10_000)] | None = None
    supported_gpus: list[ShortRef] = []


class JobPort(Item):
    """A port that a job opens."""

    port: Annotated[int, Field(ge=1, le=65_535)]
    proto: Literal["tcp", "udp", "http"] = "tcp"


class ChuteJob(Item):
    """A job that a chute offers."""

    name: Text | None = None
    ports: Annotated[list[JobPort], Field(max_length=64)] = []


class ChuteItem(Item):
    """A chute of the catalog."""

    chute_id: Id
    version: Id
    name: Text
    image: ImageName
    code: Annotated[str, StringConstraints(max_length=1_000_000)]
    filename: FileName
    ref_str: RefStr
    node_selector: NodeSelector
    supported_gpus: list[ShortRef] = []
    chutes_version: Id | None = None
    cords: list[Any] | None = None
    jobs: list[ChuteJob] | None = None
    preemptible: bool = True
    concurrency: Count | None = None
    max_instances: Count | None = None
    tee: bool = False

    def offer(self) -> OfferedChute:
        """Return it as the pool knows it."""
        jobs = self.jobs or []
        ports = dict.fromkeys((port.proto, port.port) for job in jobs for port in job.ports)
        return OfferedChute(
            id=self.chute_id,
            version=self.version,
            name=self.name,
            image=self.image,
            code=self.code,
            filename=self.filename,
            ref_str=self.ref_str,
            gpu_count=self.node_selector.gpu_count,
            supported_gpus=frozenset(self.supported_gpus or self.node_selector.supported_gpus),
            min_vram_gb=self.node_selector.min_vram_gb_per_gpu,
            chutes_version=self.chutes_version,
            job_only=not self.cords and bool(jobs),
            preemptible=self.preemptible,
            concurrency=self.concurrency,
            max_instances=self.max_instances,
            ports=tuple(ports),
            tee=self.tee,
        )


class ImageItem(Item):
    """An image of the catalog."""

    image_id: Id
    username: Text
    name: Text
    tag: Text
    patch_version: str | None = None
    chutes_version: Id | None = None

    def offer(self) -> OfferedImage:
        """Return it under the name that chutes give it."""
        patch = "" if self.patch_version in {None, "", "initial"} else f"-{self.patch_version}"
        name = f"{self.username}/{self.name}:{self.tag}{patch}"
        return OfferedImage(id=self.image_id, name=name, chutes_version=self.chutes_version)


class NodeItem(Item):
    """A GPU of ours."""

    uuid: Id
    gpu_identifier: ShortRef | None = None
    verified_at: datetime | None = None
    verification_error: Annotated[str | None, OrNothing] = None
    server_id: str | None = None

    def offer(self) -> KnownGpu:
        """Return it as the pool knows it."""
        return KnownGpu(
            uuid=self.uuid,
            short_ref=self.gpu_identifier,
            verified_at=self.verified_at,
            fault=self.verification_error,
            server_id=self.server_id,
        )


class InstanceItem(Item):
    """An instance of ours. Its key, which the validator lists in the clear, is not taken over."""

    instance_id: Id
    chute_id: Id
    version: Id
    config_id: Id | None = None
    host: Text
    port: Annotated[int, Field(ge=0, le=65_535)]
    active: bool = False
    last_verified_at: datetime | None = None

    def offer(self) -> KnownInstance:
        """Return it as the pool knows it."""
        return KnownInstance(
            id=self.instance_id,
            chute_id=self.chute_id,
            version=self.version,
            config_id=self.config_id,
            host=self.host,
            port=self.port,
            active=self.active,
            verified_at=self.last_verified_at,
        )


class MetricsItem(Item):
    """How a chute was used in the last hour."""

    chute_id: Id
    total_invocations: Count | None = None
    total_compute_time: Amount | None = None
    error_count: Count | None = None
    rate_limit_count: Count | None = None
    instance_count: Count | None = None
    compute_multiplier: Amount | None = None
    total_usage_usd: Amount | None = None

    def offer(self) -> Demand:
        """Return it as the pool knows it."""
        return Demand(
            chute_id=self.chute_id,
            invocations=self.total_invocations or 0,
            compute_seconds=self.total_compute_time or 0.0,
            rate_limited=self.rate_limit_count or 0,
            errors=self.error_count or 0,
            instances=self.instance_count,
            multiplier=self.compute_multiplier,
            usage_usd=self.total_usage_usd,
        )


class UtilizationItem(Item):
    """How many instances of a chute are there and wanted."""

    chute_id: Id
    total_instance_count: Count | None = None
    instance_count: Count | None = None
    target_count: Count | None = None
    scalable: bool = False
    update_in_progress: bool = False
    avg_busy_ratio: Amount | None = None
    utilization_current: Amount | None = None

    def offer(self) -> Capacity:
        """Return it as the pool knows it."""
        there = self.instance_count if self.total_instance_count is None else self.total_instance_count
        busy = self.utilization_current if self.avg_busy_ratio is None else self.avg_busy_ratio
        return Capacity(
            chute_id=self.chute_id,
            instances=there,
            target=self.target_count,
            scalable=self.scalable,
            updating=self.update_in_progress,
            busy=None if busy is None else min(busy, 1.0),
        )


class BountyItem(Item):
    """A bounty that waits."""

    chute_id: Id
    bounty_amount: Amount
    seconds_elapsed: Amount | None = None

    def offer(self) -> Bounty:
        """Return it as the pool knows it."""
        return Bounty(chute_id=self.chute_id, amount=self.bounty_amount, waiting_seconds=self.seconds_elapsed)


class RollingUpdateItem(Item):
    """A rolling update under way."""

    chute_id: Id
    old_version: Id
    new_version: Id
    started_at: datetime | None = None
    permitted: dict[str, int] | None = None

    def offer(self) -> RollingUpdate:
        """Return it as the pool knows it."""
        return RollingUpdate(
            chute_id=self.chute_id,
            old_version=self.old_version,
            new_version=self.new_version,
            started_at=self.started_at,
            permitted=dict(self.permitted or {}),
        )


class SupportedGpu(Item):
    """A GPU model that the validator takes."""

    hourly_rate: Amount | None = None
    memory: Annotated[float, Field(ge=0)] | None = None

    def offer(self, short_ref: str) -> GpuModelRule:
        """Return it as the pool knows it."""
        memory = None if self.memory is None else int(self.memory)
        return GpuModelRule(short_ref=short_ref, hourly_usd=self.hourly_rate, memory_gb=memory)


class LaunchReply(Item):
    """Leave to start an instance."""

    token: Annotated[str, StringConstraints(min_length=1, max_length=16_384)]
    config_id: Id


class RegistrationReply(Item):
    """Nodes were taken, and are being verified."""

    task_id: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    nodes: list[dict[str, Any]] = []


class VerificationReply(Item):
    """How the verification stands."""

    status: Literal["pending", "verified", "failed", "error"]
    detail: str | dict[str, Any] | list[Any] | None = None
    error: str | None = None
