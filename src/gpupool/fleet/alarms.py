"""Alarms: something is wrong and people are to be told; and silences: a person wants to hear nothing of it for a while.

An alarm is raised once its trouble has lasted, told, told again while it lasts, over, and told as over; then it is
forgotten. It is kept in the store all that time, so that a restart neither tells it twice nor loses its end.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase

Key = tuple[str, str]
"""Rule and subject."""


class Severity(StrEnum):
    """How bad it is."""

    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One trouble of one thing."""

    rule: str
    """Stable name such as ``node_silent``."""
    subject: str
    """Id of the thing."""
    label: str
    """Its name, for people."""
    severity: Severity
    why: str
    since: datetime
    """When the trouble began."""
    until: datetime | None = None
    """When it was over; None while it lasts."""
    told_at: datetime | None = None
    """When people were last told that it lasts; None before the first time."""

    @property
    def key(self) -> Key:
        """What it is about: there is one alarm at a time for each."""
        return self.rule, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Nothing is told of alarms that the pattern fits, until a moment."""

    id: str
    pattern: str
    """Fits the subject's name or id, the rule, or ``rule/name``; ``*``, ``?`` and ``[…]`` as in file names."""
    until: datetime
    why: str
    by: str
    """Who says so."""
    created_at: datetime

    def covers(self, alarm: Alarm, now: datetime) -> bool:
        """Tell whether nothing is told of this alarm at ``now``."""
        texts = (alarm.subject, alarm.label, alarm.rule, f"{alarm.rule}/{alarm.label}")
        return now < self.until and any(fnmatchcase(text, self.pattern) for text in texts)
