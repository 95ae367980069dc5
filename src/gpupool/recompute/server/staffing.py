"""Which workers a server has: one process for the CPU with all its threads, and one for each card it uses.

A process for each device, since a driver that crashes or hangs takes its whole process with it.
"""

from dataclasses import dataclass
from typing import Final, Literal

CPU_ENGINE: Final = "gpupool.recompute.server.numba_engine:checked_engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """One worker."""

    kind: Literal["cpu", "gpu"] = "cpu"
    name: str
    """Of the device, as start-up prints it."""
    engine: str
    """What computes there, as request lines name it."""
    factory: str
    """``module:function`` that returns a tested `Engine`; called in the worker's process."""
    threads: int
    """Questions it works on at once."""


def cpu_worker(name: str, threads: int) -> WorkerPlan:
    """Return the worker that computes on the processor ``name`` in ``threads`` threads."""
    return WorkerPlan(name=name, engine="numba", factory=CPU_ENGINE, threads=threads)
