"""Workloads: what is wanted. A chute or a recompute server, as a spec that can be placed.

What is wanted outlives every process: stopping the pool ends placements, and the workload stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

LONGEST_PAUSE_SECONDS: Final = 60.0
"""Between attempts at a workload that keeps failing."""


class WorkloadKind(StrEnum):
    """The two kinds of work that share the pool."""

    CHUTE = "chute"
    RECOMPUTE = "recompute"


class Protocol(StrEnum):
    """What an endpoint speaks."""

    OPENAI = "openai"
    HTTP = "http"
    RECOMPUTE = "recompute"
    FRAMES = "frames"
    SOLVER = "solver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Which devices are able."""

    gpu_count: int = 0
    """GPUs of one node, held exclusively; 0 means a share of the node's cpu device."""
    min_vram_mib: int = 0
    """Per GPU."""
    include: frozenset[str] = frozenset()
    """Catalog short refs; empty means any."""
    exclude: frozenset[str] = frozenset()
    max_hourly_usd: float | None = None
    """Per GPU and hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Everything a node needs to know to run a workload."""

    name: str
    kind: WorkloadKind
    protocol: Protocol
    command: tuple[str, ...] = ()
    """Arguments; ``{port}`` and ``{host}`` are filled in. Empty when an image is given."""
    image: str | None = None
    selector: Selector = field(default_factory=Selector)
    port: int | None = None
    """A fixed port; None lets the node draw one."""
    health_path: str = "/health"
    tls: bool = False
    """It takes TLS only."""
    models: tuple[str, ...] = ()
    """Model names served, as clients say them."""
    env: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 1
    """Requests one instance handles at once."""
    model_ref: str | None = None
    """Where the weights come from, such as a hub repository; the node's cache is keyed by it."""
    memory_mib: int = 1024
    """Host memory limit, and the share claimed on the cpu device when gpu_count is 0."""
    private: bool = True
    """Not of a validator's market: may run on devices outside the catalog."""
    start_timeout_seconds: float = 300.0
    grace_seconds: float = 10.0
    max_restarts: int = 3
    """Restarts in place before the placement has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A spec, how many instances of it are wanted, and how placing it has gone."""

    id: str
    version: int
    """Grows by one with every changed spec."""
    spec: WorkloadSpec
    wanted: int = 1
    deleted: bool = False
    """Nobody wants it any more; the record stays for the history of its placements."""
    failures: int = 0
    """Placements failed in a row; grows the back-off."""
    not_before: datetime | None = None
    """No new placement before this moment."""
    why: str | None = None
    """Why it is not placed as wanted, in words; None when it is."""
    created_at: datetime

    @property
    def name(self) -> str:
        """The name users say."""
        return self.spec.name

    def backs_off(self, now: datetime) -> bool:
        """Tell whether it is to be left alone for now, after failures.

        A moment further away than any pause comes from a clock that has been set back since; it holds up nothing.
        """
        left = (self.not_before - now).total_seconds() if self.not_before else 0.0
        return 0 < left <= LONGEST_PAUSE_SECONDS
