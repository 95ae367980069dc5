"""How many requests a node takes at once, learned upward.

A server that has free places answers as fast at 13 requests as at 12; one that has none lets the thirteenth wait.
So while the limit is what holds requests back and latency stays flat, it grows by one; when latency shows
waiting, it shrinks, never below where the operator set it.
"""

from typing import Final

_FLAT: Final = 1.25
"""Latency up to this many times the usual is flat."""
_WAITING: Final = 1.6
"""Latency above this many times the usual means that requests wait for each other."""


class LearnedLimit:
    """A limit between ``start`` and ``ceiling`` that follows what latency says."""

    __slots__ = ("_best", "_ceiling", "_full", "_mean", "_start", "current")

    def __init__(self, start: int, ceiling: int) -> None:
        if not 1 <= start <= ceiling:
            raise ValueError(f"a learned limit needs 1 <= start <= ceiling, not {start} and {ceiling}")
        self._start = start
        self._ceiling = ceiling
        self.current = start
        self._best: float | None = None
        self._mean = 0.0
        self._full = 0

    def observe(self, latency: float, load: int) -> None:
        """Take in a good answer: its seconds, and how many requests the node had when it was sent (itself too)."""
        if load < self.current:
            if load <= self._start:
                self._best = self._nearer(latency)
            return
        if self._best is None:
            self._best = latency
        self._full += 1
        self._mean += (latency - self._mean) / self._full
        if self._full < self.current:
            return
        self._decide(self._best)
        self._full = 0
        self._mean = 0.0

    def back_off(self) -> None:
        """Return to the start: the node was silent, so the last steps may have been too many."""
        self.current = self._start
        self._full = 0
        self._mean = 0.0

    def _nearer(self, latency: float) -> float:
        # What the node does when not crowded: soon down, slowly up, as some of these have waited too.
        best = self._best
        if best is None:
            return latency
        return best + (0.2 if latency < best else 0.002) * (latency - best)

    def _decide(self, best: float) -> None:
        if self._mean <= _FLAT * best:
            self.current = min(self._ceiling, self.current + 1)
            self._best = min(best, self._mean)
        elif self._mean > _WAITING * best:
            self.current = max(self._start, self.current * 9 // 10)
