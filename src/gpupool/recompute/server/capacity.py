"""How many threads compute: what was asked for, and what this machine has.

Operators copy ``-r 60`` from guides and forums. The number they asked for is shown to them as the original shows it,
but more threads than cores would only make every answer late, so never more are started.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThreadCount:
    """Threads asked for and cores at hand."""

    asked: int
    """As given; 0 or less means all cores."""
    cores: int
    """Cores that this process may use, at least 1."""

    @property
    def shown(self) -> int:
        """The number that start-up prints."""
        return self.asked if self.asked > 0 else self.cores

    @property
    def used(self) -> int:
        """Threads that are started: 1 to ``cores``."""
        return min(self.shown, self.cores)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
