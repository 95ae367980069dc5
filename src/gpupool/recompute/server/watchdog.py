"""Tells a worker that hangs from one that works, waits or was frozen.

Progress is counted, not timed: a process that was frozen and goes on, or a laptop that slept, has let time pass
without having hung.
"""

from collections.abc import Mapping
from typing import Final

LOOKS: Final = 10
"""How often in a row something is seen at the same place before it counts as stuck and is asked to stop."""
PATIENCE: Final = 2
"""Looks after that, before its process is killed."""
PULSE: Final = -1
"""Number under which the process itself is watched: it must answer, whether it has work or not."""


class Watchdog:
    """Compares progress from look to look."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}

    def look(self, progress: Mapping[int, int]) -> dict[int, int]:
        """Return for each number in ``progress`` (steps made so far) for how many looks it has stood still."""
        self._seen = {
            number: (steps, times + 1 if steps == before else 0)
            for number, steps in progress.items()
            for before, times in [self._seen.get(number, (-1, 0))]
        }
        return {number: times for number, (_, times) in self._seen.items()}
