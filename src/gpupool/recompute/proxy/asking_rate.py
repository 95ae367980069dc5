"""A limit on how often one client may ask, off unless given: a loop that has gone wild takes no farm's servers.

Each address has a bucket of two seconds' worth of requests, so that the burst at a signage point passes.
"""

from typing import Final

import structlog

_BURST_SECONDS: Final = 2.0
_MOST_CLIENTS: Final = 4096
_TOLD_SECONDS: Final = 60.0
"""Between two lines of the log about one client."""
log = structlog.get_logger(__name__)


class AskingRate:
    """The requests of each client address, measured against one limit."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second * _BURST_SECONDS)
        self._left: dict[str, tuple[float, float]] = {}
        """Requests that a client may still send, and as of when; who asked last stands last."""
        self._told: dict[str, float] = {}

    def admits(self, client: str, now: float) -> bool:
        """Count a request of ``client`` at ``now`` (monotonic seconds); False where it is one too many."""
        left, at = self._left.pop(client, (self._most, now))
        left = min(self._most, left + max(0.0, now - at) * self._per_second)
        admitted = left >= 1.0
        self._left[client] = (left - admitted, now)
        if len(self._left) > _MOST_CLIENTS:
            gone = next(iter(self._left))
            del self._left[gone]
            self._told.pop(gone, None)
        if not admitted and now - self._told.get(client, -_TOLD_SECONDS) >= _TOLD_SECONDS:
            self._told[client] = now
            log.warning(
                "client_over_rate",
                client=client,
                limit=self._per_second,
                remedy="Find out why it asks so often, or raise --client-rate.",
            )
        return admitted
