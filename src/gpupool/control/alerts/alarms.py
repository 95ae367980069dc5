"""From "something is wrong now" to alarms: raised once their trouble has lasted, over once it has stayed away.

Pure: time is passed in. Spans are measured by the monotonic clock, records stamped by the wall clock. An alarm keeps
its place until people were told that it is over; one that comes back before that goes on as the same one, so nobody
is ever told of two without an end between.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gpupool.control.alerts.rules import RULES, Trouble, Troubles
from gpupool.fleet.alarms import Alarm, Key

LONGEST_GAP: Final = 10.0
"""Seconds between two looks; what goes beyond was spent asleep and counts for nothing."""


@dataclass(slots=True)
class _Pending:
    since: datetime
    began: float


class Alarms:
    """The alarms that people are, or are to be, told of."""

    def __init__(self, known: Iterable[Alarm] = (), rises: Mapping[str, float] | None = None) -> None:
        """``known``: as an earlier run left them; ``rises``: rule -> seconds that replace the rule's own.

        What is told sooner by that is over sooner as well.
        """
        self._alarms = {alarm.key: alarm for alarm in known}
        given = rises or {}
        self._rises = {name: given.get(name, rule.rise) for name, rule in RULES.items()}
        self._falls = {name: min(rule.fall, given.get(name, rule.fall)) for name, rule in RULES.items()}
        self._pending: dict[Key, _Pending] = {}
        self._absent: dict[Key, float] = {}
        self._last: float | None = None

    def __iter__(self) -> Iterator[Alarm]:
        return iter(self._alarms.values())

    def get(self, key: Key) -> Alarm | None:
        """Return an alarm that is not forgotten."""
        return self._alarms.get(key)

    def look(
        self,
        found: Troubles,
        now: float,
        wall: datetime,
        *,
        judged: Callable[[Key], bool] = lambda key: True,
        raising: bool = True,
    ) -> list[Alarm]:
        """Take what is wrong at ``now`` and ``wall``; return the alarms raised, over, or back before they were over.

        ``judged`` tells for which keys ``found`` is the whole truth; all others stay as they are. Without ``raising``
        no new trouble counts.
        """
        self._forgive_sleep(now)
        changed = [
            alarm for key, trouble in found.items() if (alarm := self._see(key, trouble, now, wall, raising))
        ]
        for key in [key for key in self._pending if key not in found and judged(key)]:
            del self._pending[key]
        for key, alarm in self._alarms.items():
            if alarm.until is not None or key in found or not judged(key):
                continue
            if now - self._absent.setdefault(key, now) >= self._falls[alarm.rule]:
                del self._absent[key]
                self._alarms[key] = replace(alarm, until=wall)
                changed.append(self._alarms[key])
        return changed

    def _see(self, key: Key, trouble: Trouble, now: float, wall: datetime, raising: bool) -> Alarm | None:
        alarm = self._alarms.get(key)
        if alarm is not None and alarm.until is None:
            self._absent.pop(key, None)
            return None
        if not raising:
            return None
        pending = self._pending.setdefault(key, _Pending(wall, now))
        if now - pending.began < self._rises[key[0]]:
            return None
        del self._pending[key]
        if alarm is not None:
            self._alarms[key] = replace(alarm, until=None)
        else:
            rule, subject = key
            self._alarms[key] = Alarm(
                rule=rule,
                subject=subject,
                label=trouble.label,
                severity=RULES[rule].severity,
                why=trouble.why,
                since=pending.since,
            )
        return self._alarms[key]

    def told(self, key: Key, wall: datetime) -> None:
        """Note that people were told that an alarm lasts."""
        if key in self._alarms:
            self._alarms[key] = replace(self._alarms[key], told_at=wall)

    def told_over(self, key: Key) -> None:
        """Note that people were told that an alarm is over; one that is back by then is a new one to them."""
        alarm = self._alarms.get(key)
        if alarm is None:
            return
        if alarm.until is None:
            self._alarms[key] = replace(alarm, told_at=None)
        else:
            self.forget(key)

    def forget(self, key: Key) -> None:
        """Forget an alarm."""
        self._alarms.pop(key, None)

    def _forgive_sleep(self, now: float) -> None:
        """Count no span for which nobody looked: a process that was stopped has not seen anything last."""
        slept = 0.0 if self._last is None else now - self._last - LONGEST_GAP
        self._last = now
        if slept <= 0:
            return
        for pending in self._pending.values():
            pending.began += slept
        self._absent = {key: began + slept for key, began in self._absent.items()}
