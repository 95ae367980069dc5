"""How fast this server answers, level by level, learnt from its own answers."""

from typing import Final, Literal

from gpupool.contracts.recompute import LevelRate
from gpupool.pos.parameters import LEVELS

Kind = Literal["proof", "quality"]
_WEIGHT: Final = 0.2
"""How much the newest time counts."""


class Rates:
    """Moving means of compute times; used from the event loop only."""

    def __init__(self) -> None:
        self._means: dict[tuple[Kind, int], float] = {}

    def learn(self, kind: Kind, level: int, seconds: float) -> None:
        """Take in the compute time of one answer."""
        mean = self._means.get((kind, level), seconds)
        self._means[kind, level] = mean + _WEIGHT * (seconds - mean)

    def view(self) -> list[LevelRate]:
        """Return the means of every level that can be asked for."""
        return [
            LevelRate(level=level, proof_ms=self._ms("proof", level), quality_ms=self._ms("quality", level))
            for level in LEVELS
        ]

    def _ms(self, kind: Kind, level: int) -> float | None:
        seconds = self._means.get((kind, level))
        return None if seconds is None else round(seconds * 1000, 3)
