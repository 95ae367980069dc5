"""What is to be told of the alarms now, and when the next message may go: pure, time is passed in.

Nothing waits in a queue. What is to be told follows from the alarms alone, so a message that nobody took, or that a
restart has lost, is simply due again.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpupool.fleet.alarms import Alarm, Key, Silence

FIRST_RETRY_SECONDS: Final = 60.0
LONGEST_RETRY_SECONDS: Final = 900.0


class Phase(StrEnum):
    """What is told of an alarm."""

    NEW = "new"
    AGAIN = "again"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell."""

    alarm: Alarm
    phase: Phase


def silences_on(alarm: Alarm, silences: Iterable[Silence], now: datetime) -> list[Silence]:
    """Return the silences that cover an alarm at ``now``."""
    return [silence for silence in silences if silence.covers(alarm, now)]


def notices(
    alarms: Iterable[Alarm],
    silences: Sequence[Silence],
    now: datetime,
    repeat: timedelta,
    under_way: Collection[Key] = (),
) -> list[Notice]:
    """Return what is to be told at ``now``, oldest trouble first; ``repeat``: zero for never again.

    An end is told to those who know of the beginning, silence or not.
    """
    found = []
    for alarm in alarms:
        if alarm.key in under_way:
            continue
        silenced = bool(silences_on(alarm, silences, now))
        if alarm.until is not None:
            if alarm.told_at is not None or not silenced:
                found.append(Notice(alarm, Phase.OVER))
        elif silenced:
            continue
        elif alarm.told_at is None:
            found.append(Notice(alarm, Phase.NEW))
        elif repeat and abs(now - alarm.told_at) >= repeat:
            found.append(Notice(alarm, Phase.AGAIN))
    return sorted(found, key=lambda notice: (notice.alarm.since, notice.alarm.key))


def unheard(
    alarms: Iterable[Alarm], silences: Sequence[Silence], now: datetime, under_way: Collection[Key] = ()
) -> list[Key]:
    """Return the alarms that began and ended in silence: nobody needs to hear of them."""
    return [
        alarm.key
        for alarm in alarms
        if alarm.until is not None
        and alarm.told_at is None
        and alarm.key not in under_way
        and silences_on(alarm, silences, now)
    ]


class Pace:
    """Says when a message may go: once the first thing has waited for others, and not too soon after the last one."""

    def __init__(self, group_seconds: float, distance_seconds: float) -> None:
        self._group, self._distance = group_seconds, distance_seconds
        self._first: float | None = None
        self._not_before = 0.0
        self._failures = 0

    def ready(self, now: float, *, waiting: bool) -> bool:
        """Tell whether a message may go at ``now`` (monotonic seconds); ``waiting``: there is something to tell."""
        if not waiting:
            self._first = None
            return False
        if self._first is None:
            self._first = now
        if now - self._first < self._group or now < self._not_before:
            return False
        self._first, self._not_before = None, now + self._distance
        return True

    def went(self, now: float, *, taken: bool) -> None:
        """Note what became of a message: one that nobody took puts off the next, longer each time."""
        self._failures = 0 if taken else self._failures + 1
        if self._failures:
            pause = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(self._failures - 1, 10))
            self._not_before = max(self._not_before, now + max(self._distance, pause))
