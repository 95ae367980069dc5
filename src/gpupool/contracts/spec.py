"""The workload spec that people write: a small YAML file.

`parse_spec` reads it strictly: an unknown field, a wrong type or a broken line is refused with line and column,
and nothing is changed.
"""

from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from gpupool.contracts.base import Input, Name
from gpupool.contracts.problems import describe
from gpupool.core.errors import InvalidInputError, TooLargeError
from gpupool.core.ports import RESERVED_PORTS
from gpupool.fleet.workloads import Protocol, Selector, WorkloadKind, WorkloadSpec

MAX_SPEC_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 8
"""Levels of lists and mappings in a spec; a spec needs three."""
_NO_NUL: Final = r"^[^\x00]*$"
_Argument = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=_NO_NUL)]
_ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,199}$")]
_ShortRef = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,40}$")]
_VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
_VariableValue = Annotated[str, StringConstraints(max_length=8192, pattern=_NO_NUL)]


class MalformedSpecError(InvalidInputError):
    """The workload spec is not valid."""

    code = "malformed_spec"
    default_remedy = "Correct the file and deploy again; nothing was changed."


class SpecFile(Input):
    """One workload, as written in YAML."""

    name: Name
    """Unique in the pool: lower-case letters, digits and hyphens."""
    kind: Literal["chute", "recompute"] = "chute"
    command: Annotated[list[_Argument], Field(max_length=256)] = []
    """What to run; ``{port}`` and ``{host}`` are filled in. Give a command or an image."""
    image: Annotated[str, StringConstraints(max_length=500)] | None = None
    """A container image; needs nodes with a container runtime."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """A fixed port; left out, the node draws a free one from 30000-32767."""
    health: Annotated[str, StringConstraints(pattern=r"^/[^\s]{0,499}$")] = "/health"
    """Path that answers 2xx when the workload is ready."""
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
    model: Annotated[str, StringConstraints(max_length=500)] | None = None
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
        if bool(self.command) == bool(self.image):
            raise ValueError("give either a command or an image")
        if self.openai and not self.models:
            raise ValueError("an openai workload names at least one model")
        if self.gpu_count == 0 and not self.private:
            raise ValueError("a workload without GPUs is private")
        if self.kind == "recompute" and self.openai:
            raise ValueError("a recompute server does not speak the OpenAI API")
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


def parse_spec(text: str, source: str = "spec") -> SpecFile:
    """Return the spec in ``text`` (YAML, at most 64 KiB); raise MalformedSpecError naming ``source``, line and column."""
    if len(text.encode()) > MAX_SPEC_BYTES:
        raise TooLargeError(f"{source} is larger than {MAX_SPEC_BYTES} bytes.")
    try:
        _check_form(text, source)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise MalformedSpecError(
            f"{_at(source, mark)}: {error.problem or error.context or 'not YAML'}."
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise MalformedSpecError(f"{source}: not YAML ({type(error).__name__}).") from error
    _check_keys(node, source)
    if not isinstance(value, dict):
        raise MalformedSpecError(f"{source}:1:1: a spec is a mapping of fields to values.")
    try:
        return SpecFile.model_validate(value)
    except ValidationError as error:
        faults = [f"{source}:{_place(node, fault['loc'])}" for fault in error.errors()[:10]]
        lines = "; ".join(
            f"{place}: {text}" for place, text in zip(faults, describe(error).split("; "), strict=False)
        )
        raise MalformedSpecError(lines + ".") from error


def _at(source: str, mark: Any) -> str:
    """Return ``source:line:column`` of a mark in the text, or the source alone where there is none."""
    return f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source


def _check_form(text: str, source: str) -> None:
    """Raise MalformedSpecError for what only serves to exhaust or mislead a reader: deep nesting, aliases, and tags."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise MalformedSpecError(f"{_at(source, event.start_mark)}: a spec has no aliases (*name).")
        if getattr(event, "tag", None) is not None:
            raise MalformedSpecError(f"{_at(source, event.start_mark)}: a spec has no tags (!name).")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise MalformedSpecError(
                f"{_at(source, event.start_mark)}: nested deeper than {MAX_DEPTH} levels."
            )


def _check_keys(node: Any, source: str) -> None:
    """Raise MalformedSpecError where a mapping has a key twice: only one of its values could count."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in seen:
            raise MalformedSpecError(
                f"{_at(source, key.start_mark)}: the field {key.value[:100]} stands here a second time."
            )
        seen.add(getattr(key, "value", None) if isinstance(key, yaml.ScalarNode) else None)
        _check_keys(value, source)


def _place(node: Any, path: tuple[int | str, ...]) -> str:
    """Return ``line:column`` of the deepest node that ``path`` reaches."""
    for part in path:
        inner = _step(node, part)
        if inner is None:
            break
        node = inner
    return f"{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _step(node: Any, part: int | str) -> Any | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if getattr(key, "value", None) == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None
