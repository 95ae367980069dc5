"""How fast this server answers, level by level, learnt from its own answers."""

from collections import deque
from typing import Final, Literal

from gpupool.contracts.recompute import LevelRate
from gpupool.pos.parameters import LEVELS

Kind = Literal["proof", "quality"]
_WEIGHT: Final = 0.2
"""How much the newest time counts."""
_KEPT: Final = 8
"""Newest times of which the best one says what is possible."""
_DOUBT: Final = 0.9


class Rates:
    """Moving means of compute times; used from the event loop only."""

    def __init__(self) -> None:
        self._means: dict[tuple[Kind, int], float] = {}
        self._newest: dict[tuple[Kind, int], deque[float]] = {}

    def learn(self, kind: Kind, level: int, seconds: float) -> None:
        """Take in the compute time of one answer."""
        mean = self._means.get((kind, level), seconds)
        self._means[kind, level] = mean + _WEIGHT * (seconds - mean)
        self._newest.setdefault((kind, level), deque(maxlen=_KEPT)).append(seconds)

    def best(self, kind: Kind, level: int) -> float | None:
        """Return the seconds that an answer takes at best, as lately seen; None where none was computed yet."""
        return min(self._newest.get((kind, level), ()), default=None)

    def doubt(self, kind: Kind, level: int) -> None:
        """Believe a little less in the best time, since something was refused because of it.

        A server that was slow for a while would otherwise refuse for ever what it never tries again.
        """
        times = self._newest.get((kind, level), deque(maxlen=_KEPT))
        for index, seconds in enumerate(times):
            times[index] = seconds * _DOUBT

    def view(self) -> list[LevelRate]:
        """Return the means of every level that can be asked for."""
        return [
            LevelRate(level=level, proof_ms=self._ms("proof", level), quality_ms=self._ms("quality", level))
            for level in LEVELS
        ]

    def _ms(self, kind: Kind, level: int) -> float | None:
        seconds = self._means.get((kind, level))
        return None if seconds is None else round(seconds * 1000, 3)
