"""Which workers a server has: one process for the CPU with all its threads, and one for each card it uses.

A process for each device, since a driver that crashes or hangs takes its whole process with it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from gpupool.devices.recovery.choosing import Card

CPU_ENGINE: Final = "gpupool.recompute.server.numba_engine:checked_engine"
CARD_ENGINE: Final = "gpupool.recompute.server.gpu_engine:checked_engine"
LANES: Final = 2
"""Questions that a card works on at once: the copies of one overlap the kernels of the other."""
THREADS_PER_CARD: Final = 8
"""With several cards; what operators of the original are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """One worker."""

    kind: Literal["cpu", "gpu"] = "cpu"
    name: str
    """Of the device, as start-up prints it."""
    engine: str
    """What computes there, as request lines name it."""
    factory: str
    """``module:function`` that returns a tested `Engine`, or ``module:function:argument``; called in the worker."""
    threads: int
    """Questions it works on at once."""
    index: int | None = None
    """Of a card among those of its maker, as `-g` and `-c` count them: equal cards differ in this alone."""

    @property
    def label(self) -> str:
        """The device and what computes there, as a person finds it again."""
        return device_label(self.name, self.engine, self.index)


def device_label(name: str, engine: str, index: int | None) -> str:
    """Return ``name (engine)``, or ``name (engine 3)`` for a card."""
    return f"{name} ({engine}{'' if index is None else f' {index}'})"


def cpu_worker(name: str, threads: int) -> WorkerPlan:
    """Return the worker that computes on the processor ``name`` in ``threads`` threads."""
    return WorkerPlan(name=name, engine="numba", factory=f"{CPU_ENGINE}:{threads}", threads=threads)


def card_workers(cards: Iterable[Card]) -> list[WorkerPlan]:
    """Return one worker for each of ``cards``."""
    return [
        WorkerPlan(
            kind="gpu",
            name=card.name,
            engine=card.maker.lower(),
            factory=f"{CARD_ENGINE}:{card.id}",
            threads=LANES,
            index=card.index,
        )
        for card in cards
    ]


def thread_advice(cards: int, used: int, cores: int) -> str | None:
    """Return the line that suggests more threads, where several cards wait for tables 4 to 7 of too few."""
    wanted = min(THREADS_PER_CARD * cards, cores)
    if cards < 2 or used >= wanted:
        return None
    return (
        f"With {cards} cards, -r {wanted} is suggested ({THREADS_PER_CARD} threads a card); {used} are used"
    )
