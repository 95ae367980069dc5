"""Notices a worker that hangs: a thread inside a driver or a library cannot be interrupted, only left behind.

Progress is counted, not timed: a process that was frozen and goes on, or a laptop that slept, has let time pass
without having hung. Whoever started the server starts it again once it has ended.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from gpupool.core.errors import GpupoolError

LOOKS: Final = 10
"""How often in a row a worker is seen at the same place before it counts as stuck."""


class StuckWorkerError(GpupoolError):
    """A worker hangs in the middle of its work and cannot be stopped."""

    code = "stuck_worker"
    default_remedy = (
        "Start the server again (an agent does by itself); if it comes back, check the device's driver."
    )


class Watchdog:
    """Compares the progress of running work from look to look."""

    def __init__(self, progress: Callable[[], Mapping[int, int]]) -> None:
        self._progress = progress
        self._seen: dict[int, tuple[int, int]] = {}

    def look(self) -> int:
        """Return how many workers have been at one place for LOOKS looks."""
        self._seen = {
            job: (steps, times + 1 if steps == before else 0)
            for job, steps in self._progress().items()
            for before, times in [self._seen.get(job, (-1, 0))]
        }
        return sum(times >= LOOKS for _, times in self._seen.values())


async def watch(progress: Callable[[], Mapping[int, int]], seconds: float) -> StuckWorkerError:
    """Return once a piece of work has made no step for about ``seconds``.

    ``progress`` gives for each running piece of work, by its number, how many steps it has made.
    """
    watchdog = Watchdog(progress)
    while True:
        count = watchdog.look()
        if count:
            return StuckWorkerError(
                f"{count} of the workers made no progress for {seconds:g} s; the server ends."
            )
        await asyncio.sleep(seconds / LOOKS)
