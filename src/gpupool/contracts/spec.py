"""The workload spec that people write: a small YAML file.

`parse_spec` reads it strictly: an unknown field, a wrong type, a broken line or a wish that cannot be fulfilled is
refused with line and column, and nothing is changed.
"""

from collections.abc import Iterator
from typing import Annotated, Final, Literal, LiteralString, Self

from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gpupool.contracts.base import Input, Name
from gpupool.contracts.spec_sense import Place, senseless
from gpupool.contracts.spec_text import MAX_DEPTH, MAX_SPEC_BYTES, MalformedSpecError, read_text
from gpupool.contracts.spec_words import spec_words
from gpupool.core.errors import InvalidInputError, NotFoundError
from gpupool.core.ports import RESERVED_PORTS
from gpupool.fleet.workloads import Protocol, Selector, WorkloadKind, WorkloadSpec

__all__ = ["MAX_DEPTH", "MAX_SPEC_BYTES", "MalformedSpecError", "SpecFile", "check_sense", "parse_spec"]

_TEXTS: Final = frozenset({"command", "include", "exclude", "models", "env"})
_SHOWN_FAULTS: Final = 10
_NO_NUL: Final = r"^[^\x00]*$"
_Argument = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=_NO_NUL)]
_ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,199}$")]
_ShortRef = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,40}$")]
_VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
_VariableValue = Annotated[str, StringConstraints(max_length=8192, pattern=_NO_NUL)]


class SpecFile(Input):
    """One workload, as written in YAML."""

    name: Name
    """Unique in the pool: lower-case letters, digits and hyphens."""
    kind: Literal["chute", "recompute"] = "chute"
    command: Annotated[list[_Argument], Field(max_length=256)] = []
    """What to run; ``{port}`` and ``{host}`` are filled in. Give a command or an image."""
    image: Annotated[str, StringConstraints(max_length=500, pattern=_NO_NUL)] | None = None
    """A container image; needs nodes with a container runtime."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """A fixed port; left out, the node draws a free one from 30000-32767."""
    health: Annotated[str, StringConstraints(pattern=r"^/[^\s]{0,499}$")] = "/health"
    """Path that answers 2xx when the workload is ready."""
    tls: bool = False
    """Whether it takes TLS only: its health is asked over TLS, and those who call it are told."""
    openai: bool = False
    """Whether it speaks the OpenAI API, so that the gateway routes to it by model name."""
    models: Annotated[list[_ModelName], Field(max_length=64)] = []
    """Model names that clients use; with ``openai`` at least one."""
    gpu_count: Annotated[int, Field(ge=0, le=10)] = 0
    """GPUs on one node; 0 runs on the CPU."""
    min_vram_gb: Annotated[float, Field(ge=0, le=1024)] = 0
    """Per GPU."""
    include: Annotated[list[_ShortRef], Field(max_length=64)] = []
    """Only these GPU models (short refs of ``gpupool gpu catalog``)."""
    exclude: Annotated[list[_ShortRef], Field(max_length=64)] = []
    max_price: Annotated[float, Field(gt=0, le=1000)] | None = None
    """USD per GPU and hour."""
    env: Annotated[dict[_VariableName, _VariableValue], Field(max_length=128)] = {}
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Requests one instance handles at once."""
    model: Annotated[str, StringConstraints(max_length=500, pattern=_NO_NUL)] | None = None
    """Where the weights come from, such as a hub repository."""
    memory_mb: Annotated[int, Field(ge=16, le=4_194_304)] = 1024
    """Host memory limit in MiB."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    private: bool = True
    """Not of a validator's market."""
    start_timeout: Annotated[float, Field(ge=1, le=7200)] = 300
    """Seconds from launch to healthy."""
    grace: Annotated[float, Field(ge=0, le=600)] = 10
    """Seconds from the polite to the forced end."""
    max_restarts: Annotated[int, Field(ge=0, le=100)] = 3

    @field_validator("port")
    @classmethod
    def _not_reserved(cls, port: int | None) -> int | None:
        if port in RESERVED_PORTS:
            raise ValueError(f"port {port} is reserved by the pool")
        return port

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.command and self.image:
            raise _fault("image", "an image and a command are both given; keep one of them")
        if not self.command and not self.image:
            raise _fault("name", "give a command: what is to run")
        if self.openai and not self.models:
            raise _fault("openai", "an openai workload names at least one model; add models: [my-model]")
        if self.gpu_count == 0 and not self.private:
            raise _fault("private", "a workload without GPUs is private")
        if self.kind == "recompute" and self.openai:
            raise _fault("openai", "a recompute server does not speak the OpenAI API")
        return self

    def to_spec(self) -> WorkloadSpec:
        """Return the domain's form."""
        protocol = Protocol.OPENAI if self.openai else Protocol.HTTP
        if self.kind == "recompute":
            protocol = Protocol.RECOMPUTE
        return WorkloadSpec(
            name=self.name,
            kind=WorkloadKind(self.kind),
            protocol=protocol,
            command=tuple(self.command),
            image=self.image,
            selector=Selector(
                gpu_count=self.gpu_count,
                min_vram_mib=round(self.min_vram_gb * 1024),
                include=frozenset(self.include),
                exclude=frozenset(self.exclude),
                max_hourly_usd=self.max_price,
            ),
            port=self.port,
            health_path=self.health,
            tls=self.tls,
            models=tuple(self.models),
            env=dict(self.env),
            concurrency=self.concurrency,
            model_ref=self.model,
            memory_mib=self.memory_mb,
            private=self.private,
            start_timeout_seconds=self.start_timeout,
            grace_seconds=self.grace,
            max_restarts=self.max_restarts,
        )


def _fault(field: LiteralString, words: LiteralString) -> PydanticCustomError:
    """Return the fault of several fields together, which is shown at one of them."""
    return PydanticCustomError("inconsistent", words, {"field": field})


def parse_spec(text: str, source: str = "spec") -> SpecFile:
    """Return the spec in ``text`` (YAML, at most 64 KiB); raise MalformedSpecError naming ``source``, line and column."""
    read = read_text(text, source, _TEXTS)
    try:
        spec = SpecFile.model_validate(read.value)
    except ValidationError as error:
        faults = [
            (_place_of(fault["loc"], fault.get("ctx", {})), spec_words(fault)) for fault in error.errors()
        ]
        raise _malformed(f"{read.at(*place)}: {_named(place, words)}" for place, words in faults) from error
    faults = [*senseless(spec), *_unknown_models(spec)]
    if faults:
        raise _malformed(f"{read.at(*place)}: {_named(place, words)}" for place, words in faults)
    return spec


def check_sense(spec: SpecFile) -> None:
    """Raise InvalidInputError where the spec asks for what no pool could give."""
    faults = [_named(place, words) for place, words in senseless(spec)]
    if faults:
        raise InvalidInputError("; ".join(faults[:_SHOWN_FAULTS]) + ".")


def _malformed(lines: Iterator[str]) -> MalformedSpecError:
    return MalformedSpecError("; ".join(list(lines)[:_SHOWN_FAULTS]) + ".")


def _place_of(loc: Place, context: dict[str, object]) -> Place:
    field = context.get("field")
    return loc if loc or field is None else (str(field),)


def _named(place: Place, words: str) -> str:
    return f"{'.'.join(map(str, place)) or 'spec'}: {words}"


def _unknown_models(spec: SpecFile) -> Iterator[tuple[Place, str]]:
    """Yield each GPU model that the catalog lacks, with the ones that are spelt much like it."""
    for field, models in (("include", spec.include), ("exclude", spec.exclude)):
        for number, model in enumerate(models):
            # Most specs name no model, and need no catalog.
            from gpupool.catalog import Catalog

            try:
                Catalog.load().get(model)
            except NotFoundError as error:
                yield (field, number), error.message.rstrip(".")
