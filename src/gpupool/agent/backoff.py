"""How long to wait before trying again: longer each time, never the same for two agents."""

import random
from typing import Final

FIRST_SECONDS: Final = 0.2
MOST_SECONDS: Final = 15.0
MOST_SPREAD_SECONDS: Final = 20.0


class Backoff:
    """Delays that double from 0.2 s to 15 s, each drawn between half of it and the whole."""

    def __init__(self, draw: random.Random | None = None, most: float | None = None) -> None:
        """``draw``: the source of chance; tests bring their own. ``most``: a longest delay below 15 s."""
        self._draw = draw or random.SystemRandom()
        self._most = MOST_SECONDS if most is None else min(most, MOST_SECONDS)
        self._failures = 0

    def next(self, spread: float = 0.0) -> float:
        """Return the seconds to wait after one more failure.

        ``spread``: seconds over which all agents should spread when they lose control at one moment; it counts for the
        first failure, and up to 20 s.
        """
        whole = min(FIRST_SECONDS * 2.0 ** min(self._failures, 16), self._most)
        pause = whole * self._draw.uniform(0.5, 1.0)
        if not self._failures and spread > whole:
            pause = self._draw.uniform(0.0, min(spread, MOST_SPREAD_SECONDS))
        self._failures += 1
        return pause

    def reset(self) -> None:
        """Start from the shortest delay again."""
        self._failures = 0
