"""When a workload counts as healthy, and when patience ends: pure judgement over probe results and time.

One failed probe is not news; three in a row take an instance out of service, and only lasting failure ends it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthTimings:
    """How often health is asked for and how long failure is borne, in seconds."""

    first_pause: float = 0.1
    """Between probes just after launch; grows to ``starting_pause``."""
    starting_pause: float = 1.0
    steady_pause: float = 2.0
    timeout: float = 2.0
    failures: int = 3
    """Failed probes in a row that take health away."""
    unhealthy_limit: float = 30.0
    """How long an instance that was healthy may stay unhealthy before it is ended."""
    settled: float = 600.0
    """Healthy for this long, earlier restarts no longer count."""


class HealthJudge:
    """Follows one launch of an instance. All times are monotonic seconds."""

    def __init__(self, timings: HealthTimings, launched: float, start_timeout: float) -> None:
        """``launched``: when the process was started; ``start_timeout``: seconds it has to become healthy."""
        self._timings = timings
        self._start_timeout = start_timeout
        self._deadline = launched + start_timeout
        self._ever = False
        self._failures = 0
        self._pause = timings.first_pause
        self._healthy_since: float | None = None

    @property
    def healthy(self) -> bool:
        """Whether it is in service."""
        return self._healthy_since is not None

    def settled(self, now: float) -> bool:
        """Tell whether it has been healthy for long enough to forgive earlier restarts."""
        return self._healthy_since is not None and now - self._healthy_since >= self._timings.settled

    def note(self, fault: str | None, now: float) -> str | None:
        """Take in a probe's result (None: it answered well); return why patience has ended, or None."""
        if fault is None:
            self._ever = True
            self._failures = 0
            self._healthy_since = now if self._healthy_since is None else self._healthy_since
            return None
        self._failures += 1
        if self.healthy:
            if self._failures >= self._timings.failures:
                self._healthy_since = None
                self._deadline = now + self._timings.unhealthy_limit
            return None
        if now < self._deadline:
            return None
        if self._ever:
            return f"unhealthy: no good answer for {self._timings.unhealthy_limit:g} s ({fault})"
        return f"unhealthy: not healthy within {self._start_timeout:g} s of its launch ({fault})"

    def next_pause(self) -> float:
        """Return how long to wait before the next probe."""
        if self.healthy:
            return self._timings.steady_pause
        pause = self._pause
        self._pause = min(pause * 1.25, self._timings.starting_pause)
        return pause
