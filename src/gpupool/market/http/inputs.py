"""What comes in over the wire, held to its limits before anything looks at it."""

import re
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gpupool.core.nesting import is_deeper
from gpupool.market.publishing import ChuteWish
from gpupool.market.records import JobKind, Use
from gpupool.market.refusing import RefusedError
from gpupool.market.registering import GpuClaim

_UUID: Final = r"^[0-9a-f]{32}$"
_HOST: Final = r"^[A-Za-z0-9.:-]{1,253}$"
_MOST_GPUS: Final = 10
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Text = Annotated[str, StringConstraints(max_length=2000)]
Host = Annotated[str, StringConstraints(pattern=_HOST)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
M = TypeVar("M", bound=BaseModel)


class Tolerant(BaseModel):
    """Of another's software: what we do not know is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Strict(BaseModel):
    """Of our own commands: what we do not know is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeInput(Tolerant):
    """A GPU that is made known."""

    uuid: Annotated[str, StringConstraints(pattern=_UUID)]
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    memory: Annotated[int, Field(ge=0, lt=2**63)]
    processors: Annotated[int, Field(ge=0, lt=2**31)]
    clock_rate: Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]
    max_threads_per_processor: Annotated[int, Field(ge=0, lt=2**31)]
    device_index: Annotated[int, Field(ge=0, le=1000)]
    gpu_identifier: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,40}$")]
    verification_host: Host
    verification_port: Annotated[int, Field(ge=80, le=65_535)]
    major: int | None = None
    minor: int | None = None
    sxm: bool | None = None
    concurrent_kernels: bool | None = None
    ecc: bool | None = None

    def claim(self) -> GpuClaim:
        """Return it as the market takes it."""
        return GpuClaim(
            uuid=self.uuid,
            name=self.name,
            memory=self.memory,
            processors=self.processors,
            clock_khz=self.clock_rate,
            device_index=self.device_index,
            short_ref=self.gpu_identifier,
            host=self.verification_host,
            port=self.verification_port,
            facts=self.model_dump(mode="json", exclude_none=True),
        )


class ServerInput(Tolerant):
    """A server with its GPUs."""

    server_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
    server_name: Text = ""
    nodes: Annotated[list[NodeInput], Field(min_length=1, max_length=_MOST_GPUS)]


class PortMapping(Tolerant):
    """Where one of an instance's ports is reached."""

    proto: Literal["tcp", "udp", "http"]
    internal_port: Port
    external_port: Port
    default: bool = False


class ClaimInput(Tolerant):
    """An instance's first word."""

    gpus: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=_MOST_GPUS)]
    host: Host
    port_mappings: Annotated[list[PortMapping], Field(min_length=1, max_length=64)]


class ProofInput(Tolerant):
    """An instance's proof."""

    response: Annotated[str, StringConstraints(max_length=65_536)]
    iv: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{32}$")]
    proof: dict[str, Any] = {}


class JobKindInput(Strict):
    """A job that a chute offers."""

    name: Word
    ports: list[tuple[Literal["tcp", "udp", "http"], Port]] = []
    timeout_seconds: Annotated[float, Field(ge=1, le=7 * 86_400)] = 3600.0


class ChuteInput(Strict):
    """A chute that its owner publishes."""

    user: Word
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/ -]{0,127}$")]
    image: Annotated[str, StringConstraints(max_length=300)]
    filename: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")]
    ref_str: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,200}:[A-Za-z0-9_]{1,200}$")]
    code: str
    tagline: Text = ""
    readme: Annotated[str, StringConstraints(max_length=100_000)] = ""
    gpu_count: Annotated[int, Field(ge=1, le=8)] = 1
    min_vram_gb: Annotated[int, Field(ge=0, le=1000)] = 0
    include: list[str] = []
    exclude: list[str] = []
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 1
    cords: Annotated[list[dict[str, Any]], Field(max_length=100)] = []
    jobs: Annotated[list[JobKindInput], Field(max_length=20)] = []
    preemptible: bool = True
    public: bool = True
    target: Annotated[int, Field(ge=0, le=1000)] = 1

    def wish(self) -> ChuteWish:
        """Return it as the market takes it."""
        plain = self.model_dump(exclude={"include", "exclude", "cords", "jobs"})
        return ChuteWish(
            **plain,
            include=frozenset(self.include),
            exclude=frozenset(self.exclude),
            cords=tuple(self.cords),
            jobs=tuple(
                JobKind(name=kind.name, ports=tuple(kind.ports), timeout_seconds=kind.timeout_seconds)
                for kind in self.jobs
            ),
        )


class ImageInput(Strict):
    """An image that its owner publishes."""

    user: Word
    name: Word
    tag: Word


class TargetInput(Strict):
    """How many instances of a chute are wanted."""

    target: Annotated[int, Field(ge=0, le=1000)]


class JobInput(Strict):
    """A job that somebody wants run."""

    chute_id: Annotated[str, StringConstraints(max_length=100)]
    method: Word
    arguments: dict[str, Any] = {}
    disk_gb: Annotated[int, Field(ge=1, le=100_000)] = 10
    exclude: Annotated[list[str], Field(max_length=100)] = []


class UseInput(Strict):
    """How an instance was used since it began."""

    instance_id: Annotated[str, StringConstraints(max_length=100)]
    chute_id: Annotated[str, StringConstraints(max_length=100)]
    invocations: Annotated[int, Field(ge=0, lt=2**53)] = 0
    errors: Annotated[int, Field(ge=0, lt=2**53)] = 0
    rate_limited: Annotated[int, Field(ge=0, lt=2**53)] = 0
    compute_seconds: Amount = 0.0

    def use(self) -> Use:
        """Return it as the market takes it."""
        return Use(id=self.instance_id, **self.model_dump(exclude={"instance_id"}))


class UsesInput(Strict):
    """How several instances were used."""

    uses: Annotated[list[UseInput], Field(max_length=10_000)]


def parsed(kind: type[M], body: bytes) -> M:
    """Return a body as a message; RefusedError 422, as the validator answers, where it is none."""
    if is_deeper(body):
        raise RefusedError(422, "The body is nested too deep.")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        faults = error.errors()[:5]
        where = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
        raise RefusedError(422, re.sub(r"\s+", " ", where)) from error
