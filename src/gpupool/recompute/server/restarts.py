"""How soon a worker that died is started again: at once, then ever later, and at last not for a long while.

A driver that crashes at every question would otherwise keep a machine busy with nothing but starting it.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Times in seconds."""

    first_pause: float = 1.0
    """Before the second restart of a window; doubles from then on. The first restart is immediate."""
    window: float = 600.0
    """Deaths longer ago than this are forgotten."""
    quarantine_after: int = 6
    """Deaths in one window that mean it is no use."""
    quarantine: float = 600.0


@dataclass(frozen=True, slots=True)
class Rest:
    """What to do about a death."""

    seconds: float
    quarantined: bool = False


@dataclass(slots=True)
class Restarts:
    """The deaths of one worker."""

    policy: RestartPolicy = field(default_factory=RestartPolicy)
    deaths: int = 0
    """In all."""
    _recent: list[float] = field(default_factory=list)
    _on_trial: bool = False
    """It came back from quarantine, and the next death sends it there again."""

    def died(self, now: float, lived: float, *, useless: bool = False) -> Rest:
        """Note a death at ``now`` (monotonic), after ``lived`` seconds of being ready; return the rest it earns.

        ``useless``: once is enough, as when an answer was wrong.
        """
        policy = self.policy
        self.deaths += 1
        self._recent = [moment for moment in self._recent if now - moment < policy.window] + [now]
        if self._on_trial and lived >= policy.window:
            self._on_trial = False
        if useless or self._on_trial or len(self._recent) >= policy.quarantine_after:
            self._on_trial = True
            self._recent.clear()
            return Rest(policy.quarantine, quarantined=True)
        before = len(self._recent) - 1
        return Rest(policy.first_pause * 2.0 ** (before - 1) if before else 0.0)
