"""A limit on how often one address may ask: guessing and loops gone wild cost little."""

from typing import Final

from gpupool.core.clock import Clock
from gpupool.core.errors import BusyError

_MOST_CLIENTS: Final = 4096


class AddressRates:
    """A bucket of requests for each address, filled steadily."""

    def __init__(self, clock: Clock, *, per_second: float, burst: int) -> None:
        """``burst``: requests that may come at once (>= 1)."""
        self._clock, self._per_second, self._burst = clock, per_second, burst
        self._left: dict[str, tuple[float, float]] = {}
        """Requests left and as of when; who asked last stands last."""

    def take(self, address: str) -> None:
        """Count a request; raise BusyError where it is one too many, which then does not count."""
        now = self._clock.monotonic()
        left, at = self._left.pop(address, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._per_second)
        enough = left >= 1
        self._left[address] = (left - enough, now)
        if len(self._left) > _MOST_CLIENTS:
            del self._left[next(iter(self._left))]
        if not enough:
            raise BusyError(
                f"{address} asks too often: {self._burst} requests at once and {self._per_second:g} a second are taken.",
                remedy="Wait a second, then go on more slowly.",
                retry_after=(1 - left) / self._per_second,
            )
