"""Time as a dependency, so that tests turn the hands themselves.

Wall time stamps records; monotonic time measures spans and deadlines and never jumps when the wall clock is set.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What the pool asks of time."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only ever grow."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that only ever grow."""
        return time.monotonic()


class FakeClock:
    """A clock that moves only when told; for tests and for the simulator."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._monotonic = 0.0

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds that only ever grow."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` (>= 0) pass."""
        if seconds < 0:
            raise ValueError("time cannot run backwards")
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or NTP may; monotonic time does not notice."""
        self._now += timedelta(seconds=seconds)
