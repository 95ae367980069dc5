"""A wall clock that a test turns under running processes, while their monotonic clocks go on.

libfaketime stands in front of libc and reads from a file how far off the clock is, every second. Only the wall clock
is touched: not monotonic time, and not the times of files. The wheel installs on every machine, yet holds a library
for x86-64 Linux: elsewhere build libfaketime and put its `libfaketime.so.1` in that one's place.
"""

from importlib.util import find_spec
from pathlib import Path


def library() -> Path:
    """Return libfaketime's shared object."""
    spec = find_spec("libfaketime")
    assert spec is not None
    assert spec.origin is not None
    (found,) = Path(spec.origin).parent.rglob("libfaketime.so.1")
    return found


class TurnedClock:
    """The wall clock of every process that is started with its `variables`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.ahead = 0
        """Seconds that it is ahead of the machine's own."""
        self.turn(0)

    def turn(self, ahead: int) -> None:
        """Set it ``ahead`` seconds before (below 0: behind) the machine's own; within a second it is."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{ahead:+d}\n")
        fresh.replace(self._file)
        self.ahead = ahead

    @property
    def variables(self) -> dict[str, str]:
        """What a process needs in its environment to go by this clock."""
        return {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
