"""Quantiles of latencies in constant memory, with old values fading out.

Buckets grow by a fixed ratio, so every quantile is off by at most that ratio, upwards, from 0.1 ms to more than
15 minutes. All counts are halved now and then: what a node did long ago stops mattering.
"""

import math
from array import array
from bisect import bisect_left
from typing import Final

LOWEST_S = 1e-4
RATIO = 1.15
BUCKETS = 116
_EDGES = tuple(LOWEST_S * RATIO**i for i in range(BUCKETS))

_HALF_LIFE_S: Final = 60.0
_MOST: Final = 2000.0


class DecayingHistogram:
    """Counts of latencies (seconds) in logarithmic buckets."""

    __slots__ = ("_adds", "_cache", "_counts", "_halved_at", "_total")

    def __init__(self) -> None:
        self._counts = array("d", bytes(8 * BUCKETS))
        self._total = 0.0
        self._adds = 0
        self._halved_at: float | None = None
        self._cache: dict[float, tuple[int, float]] = {}

    @property
    def total(self) -> float:
        """Return how many values it holds, faded ones counted in part."""
        return self._total

    def add(self, seconds: float, now: float) -> None:
        """Count one latency."""
        if self._halved_at is None:
            self._halved_at = now
        elif self._total > _MOST or now - self._halved_at > _HALF_LIFE_S:
            self._halve(now)
        self._counts[bisect_left(_EDGES, seconds, 0, BUCKETS - 1)] += 1
        self._total += 1
        self._adds += 1

    def quantile(self, q: float) -> float | None:
        """Return the upper edge of the bucket that holds quantile ``q`` (0..1), None when empty.

        A value up to 32 additions old may be returned: walking all buckets for every request would cost more
        than what is learned.
        """
        if self._total <= 0:
            return None
        cached = self._cache.get(q)
        if cached is not None and self._adds - cached[0] < min(32.0, 0.1 * self._total):
            return cached[1]
        value = self._walk(q)
        if len(self._cache) < 8 or cached is not None:
            self._cache[q] = (self._adds, value)
        return value

    def _walk(self, q: float) -> float:
        wanted = q * self._total
        seen = 0.0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return _EDGES[index]
        return _EDGES[-1]

    def _halve(self, now: float) -> None:
        # A long silence is worth several halvings; counts below a thousandth are dust.
        times = max(1, min(20, int((now - (self._halved_at or now)) / _HALF_LIFE_S)))
        share = 0.5**times
        for index, count in enumerate(self._counts):
            if count:
                left = count * share
                self._counts[index] = left if left > 1e-3 else 0.0
        self._total = math.fsum(self._counts)
        self._halved_at = now
