"""Where a job is expected to be finished first, among workers of unequal speed.

A job goes to the worker that finishes it first, even where that one is busy and a slower one is idle: a card that
takes 30 ms is worth a short wait where the CPU takes 600. Jobs are put one after the other, each behind those before
it, so the same few lines say what to start now, and when somebody who comes now would be served. Pure.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")
J = TypeVar("J")


@dataclass(frozen=True, slots=True)
class Slot(Generic[W]):
    """A place in the near future; times in seconds from now."""

    worker: W
    start: float
    finish: float


class Schedule(Generic[W, J]):
    """What each worker has before it."""

    def __init__(self, workers: Mapping[W, Sequence[float]], cost: Callable[[W, J], float | None]) -> None:
        """``workers``: in how many seconds each of their threads is free. ``cost``: None where one may not do it."""
        self._free = {worker: sorted(threads) for worker, threads in workers.items()}
        self._cost = cost

    @property
    def idle(self) -> bool:
        """Whether a thread is free now."""
        return any(threads and threads[0] <= 0 for threads in self._free.values())

    def put(self, job: J) -> Slot[W] | None:
        """Give a job to whoever finishes it first; None where nobody may do it.

        Where several would finish at once, the one with the smallest share of its threads at work takes it.
        """
        best: Slot[W] | None = None
        for worker, threads in self._free.items():
            seconds = self._cost(worker, job)
            if seconds is None or not threads:
                continue
            finish = threads[0] + seconds
            if (
                best is None
                or finish < best.finish
                or (finish == best.finish and self._has_more_room(worker, best))
            ):
                best = Slot(worker, threads[0], finish)
        if best is None:
            return None
        heapq.heapreplace(self._free[best.worker], best.finish)
        return best

    def _has_more_room(self, worker: W, best: Slot[W]) -> bool:
        """Tell whether a smaller share of the threads of ``worker`` is at work."""
        mine, other = self._free[worker], self._free[best.worker]
        return sum(free > 0 for free in mine) * len(other) < sum(free > 0 for free in other) * len(mine)
