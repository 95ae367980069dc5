"""The runtime port: how a node runs a workload (processes here; containers and Kubernetes behind the same port).

A runtime owns instances by placement id. Instances outlive the process that holds the runtime: `adopt` finds them
again after a restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class InstanceState(StrEnum):
    """What a runtime sees of an instance."""

    STARTING = "starting"
    RUNNING = "running"
    """The process runs; not healthy yet, or not any more."""
    HEALTHY = "healthy"
    STOPPING = "stopping"
    EXITED = "exited"
    """It is gone, with everything it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """Everything needed to run one instance."""

    placement_id: str
    workload_name: str
    command: tuple[str, ...]
    """``{port}`` and ``{host}`` are filled in by the runtime."""
    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    """Fixed, or None to draw one."""
    health_path: str = "/health"
    tls: bool = False
    """It takes TLS only."""
    gpu_indices: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    memory_mib: int = 1024
    model_ref: str | None = None
    start_timeout_seconds: float = 300.0
    grace_seconds: float = 10.0
    max_restarts: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What a runtime sees of one instance."""

    placement_id: str
    state: InstanceState
    port: int | None = None
    pid: int | None = None
    restarts: int = 0
    reason: str | None = None
    """Why it exited: starts with ``exit``, ``signal``, ``unhealthy``, ``memory``, ``stopped``, ``lost`` or ``launch``."""
    memory_mib: int | None = None


class Runtime(Protocol):
    """Runs instances. Every method is safe to repeat."""

    async def adopt(self) -> Sequence[Instance]:
        """Find the instances that an earlier run left behind and take them over; call once, first."""
        ...

    async def launch(self, order: LaunchOrder) -> Instance:
        """Start an instance, or return the one that already runs for this placement."""
        ...

    async def stop(self, placement_id: str, grace_seconds: float | None = None) -> None:
        """Ask an instance to end, and make it end after the grace; returns when it and its children are gone."""
        ...

    async def instances(self) -> Sequence[Instance]:
        """Return every instance known, exited ones until `forget`."""
        ...

    async def changed(self) -> None:
        """Wait until some instance has changed since the last call of `instances`."""
        ...

    async def forget(self, placement_id: str) -> None:
        """Drop the record of an exited instance; its logs stay until rotated away."""
        ...

    async def log_tail(self, placement_id: str, lines: int) -> str:
        """Return the last lines of the instance's output, at most 1 MiB; NotFoundError when there is none."""
        ...

    async def close(self, *, stop_instances: bool) -> None:
        """Let go of the instances, or end them first."""
        ...
