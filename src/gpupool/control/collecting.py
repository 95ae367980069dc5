"""Garbage that is looked for without halting the process: a look at everything that ten thousand links keep takes a second.

What has survived a few seconds is set aside, where the collector does not look; so each of its runs is short. What is
garbage among that, such as a connection that closed in the middle of something, is found once an hour.
"""

import gc
from typing import Final

from gpupool.control.pool import Pool

ASIDE_SECONDS: Final = 5.0
WHOLE_SECONDS: Final = 3600.0


class Collector:
    """Keeps the runs of Python's collector short."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._whole = pool.clock.monotonic()

    async def run(self) -> None:
        """Set aside until the pool closes."""
        while not self._pool.changes.closed:
            self.set_aside()
            await self._pool.changes.until(lambda: False, ASIDE_SECONDS)

    def set_aside(self) -> None:
        """Let the collector pass over what is there now; look at all of it where that was not done for an hour."""
        now = self._pool.clock.monotonic()
        if now - self._whole >= WHOLE_SECONDS:
            self._whole = now
            gc.unfreeze()
            gc.collect()
        gc.freeze()
