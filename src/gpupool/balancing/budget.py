"""A budget for extra work, so that retries and hedges never multiply an overload.

Every request earns a fraction of an extra attempt; a floor per second lets a quiet pool retry as well.
"""

from typing import Final

WINDOW_S: Final = 10.0


class RetryBudget:
    """A bucket of tokens: requests pour in ``ratio`` each, time pours in ``floor_per_s``; an extra takes one.

    The bucket holds ten seconds of the floor plus ``burst`` tokens at most, and starts with the floor's part.
    """

    __slots__ = ("_at", "_capacity", "_floor", "_ratio", "_tokens", "earned", "taken")

    def __init__(self, ratio: float, floor_per_s: float = 0.0, burst: float = 1000.0) -> None:
        if ratio < 0 or floor_per_s < 0 or burst < 1:
            raise ValueError("a budget needs a ratio and a floor of at least 0 and a burst of at least 1")
        self._ratio = ratio
        self._floor = floor_per_s
        self._capacity = floor_per_s * WINDOW_S + burst
        self._tokens = floor_per_s * WINDOW_S
        self._at: float | None = None
        self.earned = 0
        """Requests since the bucket was last looked at."""
        self.taken = 0
        """Extra attempts so far."""

    def available(self, now: float) -> bool:
        """Say whether an extra attempt may be made now."""
        self._flow(now)
        return self._tokens >= 1.0

    def take(self, now: float) -> bool:
        """Spend one extra attempt; False, and nothing spent, when there is none."""
        self._flow(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        self.taken += 1
        return True

    def _flow(self, now: float) -> None:
        since = 0.0 if self._at is None else max(0.0, now - self._at)
        poured = self._tokens + self.earned * self._ratio + since * self._floor
        self._tokens = min(self._capacity, poured)
        self.earned = 0
        self._at = now if self._at is None else max(self._at, now)
