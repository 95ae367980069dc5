"""Answers that are serialised once a change: lists and feeds that many ask for between two commits."""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.responses import Response

from gpupool.control.changes import Changes
from gpupool.core.clock import Clock

_SECONDS: Final = 1.0
"""How long an answer is kept without a change: last-heard times, which are no change, are no older than this."""
_MAX_KEPT: Final = 1000


class Answers:
    """Serialised answers by name."""

    def __init__(self, clock: Clock, changes: Changes) -> None:
        self._clock, self._changes = clock, changes
        self._kept: dict[str, tuple[int, float, Response]] = {}

    async def get(self, key: str, build: Callable[[], Awaitable[Response]]) -> Response:
        """Return the answer kept under ``key``, or the one that ``build`` makes now."""
        now, count = self._clock.monotonic(), self._changes.count
        kept = self._kept.get(key)
        if kept is not None and kept[0] == count and now - kept[1] < _SECONDS:
            return kept[2]
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        response = await build()
        self._kept[key] = (count, now, response)
        return response
