"""The logs of our own processes, kept from growing for ever while the processes run.

Every log is a file that a child holds open for append, so it is cut as a workload's output is: copied to ``.1`` and
emptied. A process that logs thousands of lines a second for a year costs three files of 8 MiB.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpupool.runtimes.process.output import rotate

LOOK_SECONDS: Final = 5.0


class LogKeeper:
    """Looks at every ``*.log`` of a folder now and then and cuts what has reached the limit."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._due = clock()
        self._told = False

    def tend(self) -> str | None:
        """Cut what is too long, at most once in `LOOK_SECONDS`; return what went wrong the first time, in words.

        A full disk must not end the pool, so a log that cannot be cut now is tried again at the next look.
        """
        now = self._clock()
        if now < self._due:
            return None
        self._due = now + LOOK_SECONDS
        faults = [fault for path in sorted(self._folder.glob("*.log")) if (fault := _cut(path)) is not None]
        told, self._told = self._told, bool(faults)
        return faults[0] if faults and not told else None


def _cut(path: Path) -> str | None:
    try:
        rotate(path)
    except OSError as error:
        return f"the log {path} is too long and cannot be cut: {error.strerror}; free space on its disk"
    return None
