"""How fast each worker answers, learnt from its own answers; what was never seen is guessed from what was.

Work is measured in values to be computed (see `pos.costs`), so one level tells of the next. A worker that has answered
nothing yet is guessed to be fast, so that it is tried, and then its speed is known. One that was slow when it was cold
and is passed over since is believed a little faster each time, until it is tried again.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from gpupool.contracts.recompute import LevelRate
from gpupool.pos.costs import Kind, cost
from gpupool.pos.parameters import BITS_AT_LEVEL_ZERO, LEVELS, K
from gpupool.recompute.server.capacity import usable_cores
from gpupool.recompute.server.questions import AnyQuestion, Asking, level_of
from gpupool.solvers.questions import core_seconds

_WEIGHT: Final = 0.2
"""How much the newest time counts."""
_KEPT: Final = 8
"""Newest times of which the best one says what is possible."""
_DOUBT: Final = 0.9
_KINDS: Final[tuple[Kind, ...]] = ("proof", "quality")
_SECONDS_A_VALUE: Final = 5e-10
"""Of a worker of which nothing is known: a tenth of what a core of a server takes."""
_FORGETTING: Final = 0.995
"""One try in some 600 goes to a card that is 20 times slower than the CPU."""
_MOST_KINDS_OF_WORK: Final = 512
"""Kinds of work remembered for each worker; there are 14 in a farm, and a few hundred that clients could think of."""
EVERYBODY: Final = ""
"""Stands for all workers together."""


@dataclass(frozen=True, slots=True)
class Work:
    """What decides how long a question takes."""

    kind: Asking
    level: int
    """Dropped bits less 15; of a solution, the strength."""
    k: int = K

    @property
    def units(self) -> float:
        """Its size in values to be computed; of a solution, in what takes as long here."""
        return _values(self)

    @classmethod
    def of(cls, kind: Asking, question: AnyQuestion) -> "Work":
        """Return the work that a question makes."""
        return cls(kind, level_of(question), question.k)


@cache
def _values(work: Work) -> float:
    if work.kind == "solve":
        return core_seconds(work.k, work.level) / usable_cores() / _SECONDS_A_VALUE
    return cost(work.kind, BITS_AT_LEVEL_ZERO + work.level, work.k).values


@dataclass(slots=True)
class _Times:
    mean: float
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))


class Rates:
    """Moving means of compute times, by worker and work; used from the event loop only."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Work, _Times]] = {EVERYBODY: {}}

    def learn(self, work: Work, seconds: float, worker: str = EVERYBODY) -> None:
        """Take in the compute time of one answer."""
        for name in {worker, EVERYBODY}:
            known = self._known.setdefault(name, {})
            if work not in known and len(known) >= _MOST_KINDS_OF_WORK:
                del known[next(iter(known))]
            times = known.setdefault(work, _Times(seconds))
            times.mean += _WEIGHT * (seconds - times.mean)
            times.newest.append(seconds)

    def best(self, work: Work, worker: str = EVERYBODY) -> float | None:
        """Return the seconds that an answer takes at best, as lately seen; None where none was computed yet."""
        times = self._known.get(worker, {}).get(work)
        return None if times is None else min(times.newest)

    def expected(self, work: Work, worker: str) -> float:
        """Return the seconds that a worker is expected to take (> 0): its mean, or a guess from its nearest work."""
        known = self._known.get(worker, {})
        times = known.get(work)
        if times is not None:
            return max(times.mean, 1e-6)
        # Small v2 plots, which take milliseconds, tell nothing of real ones.
        alike = [seen for seen in known if work.kind != "solve" or seen.k == work.k]
        if not alike:
            return work.units * _SECONDS_A_VALUE
        nearest = min(alike, key=lambda seen: (seen.kind != work.kind, abs(seen.level - work.level)))
        return max(known[nearest].mean * work.units / nearest.units, 1e-6)

    def passed_over(self, work: Work, worker: str) -> None:
        """Believe a worker that was not tried a little faster."""
        times = self._known.get(worker, {}).get(work)
        if times is not None:
            times.mean *= _FORGETTING

    def doubt(self, work: Work) -> None:
        """Believe a little less in the best times, since something was refused because of them.

        A server that was slow for a while would otherwise refuse for ever what it never tries again.
        """
        for known in self._known.values():
            times = known.get(work)
            if times is not None:
                times.newest = deque((seconds * _DOUBT for seconds in times.newest), maxlen=_KEPT)

    def view(self, worker: str = EVERYBODY) -> list[LevelRate]:
        """Return the means of every level that has a name."""
        return [LevelRate(level=level, **self._row(worker, level)) for level in LEVELS]

    def _row(self, worker: str, level: int) -> dict[str, float | None]:
        known = self._known.get(worker, {})
        rows = {f"{kind}_ms": known.get(Work(kind, level)) for kind in _KINDS}
        return {name: None if times is None else round(times.mean * 1000, 3) for name, times in rows.items()}
