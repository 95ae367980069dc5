"""What the client knows of its hosts: who is good, who rests after a failure, who is fast. Pure; time is passed in.

The load goes to the host expected to finish first; hosts that are about equally good take turns. A failed host rests
for the retry interval; when that is over, one look-up tries it and the others wait for what comes of it. Where no
host is good, all look-ups together try a failed one in growing pauses, so that many of them do not bury a host that
is just starting. A host that answered wrong is asked only when nobody else is left: its answers are verified, so it
costs time and no look-up.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

SILENCE_FLOOR_S: Final = 0.5
_SILENCE_FACTOR: Final = 4.0
_WEIGHT: Final = 0.2
"""How much the newest time counts."""
_FORGET_S: Final = 5.0
"""A bad time counts half after this long, so that a host that was slow once is tried again."""
_EQUAL: Final = 1.25
_EQUAL_S: Final = 0.02
"""Hosts that finish within so many times the best one's time, or so many seconds later, take turns: less is chance."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.5


@dataclass(slots=True)
class _Speed:
    seconds: float
    """Mean time of an answer."""
    share: float
    """The same for each question the host had at that time: what one more costs where they queue."""
    learnt_at: float

    def learn(self, seconds: float, outstanding: int, now: float) -> None:
        self.seconds += _WEIGHT * (seconds - self.seconds)
        self.share += _WEIGHT * (seconds / outstanding - self.share)
        self.learnt_at = now

    def expected(self, outstanding: int) -> float:
        return max(self.seconds, self.share * outstanding)


@dataclass(slots=True)
class _Record:
    outstanding: int = 0
    speeds: dict[str, _Speed] = field(default_factory=dict)
    """By speed class."""
    failed_at: float | None = None
    rests_until: float = 0.0
    failures_in_row: int = 0
    next_try: float = 0.0
    """From when on it may be tried although it rests."""
    reason: str | None = None
    quarantined: bool = False
    answered_at: float = float("-inf")
    picked: int = 0
    answers: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class HostView:
    """How a host stands."""

    name: str
    state: str
    """``good``, ``resting`` or ``quarantined``."""
    reason: str | None
    """What went wrong last; None while it is good."""
    answers: int
    failures: int
    outstanding: int


class HostTable:
    """The hosts of one client; not for several threads."""

    def __init__(self, names: Iterable[str], retry_interval_s: float) -> None:
        self._records = {name: _Record() for name in names}
        self._retry_interval_s = retry_interval_s
        self._turn = 0

    @property
    def names(self) -> frozenset[str]:
        """Every host."""
        return frozenset(self._records)

    def pick(self, now: float, speed_class: str, exclude: Collection[str] = ()) -> str | None:
        """Return the good host that will probably finish first, None where no host is good."""
        good = {
            name: record
            for name, record in self._records.items()
            if name not in exclude and self._good(record, now)
        }
        if not good:
            return None
        finish = self._expected(good, speed_class, now)
        best = min(finish.values())
        most = max(best * _EQUAL, best + _EQUAL_S)
        return min((name for name in good if finish[name] <= most), key=lambda name: good[name].picked)

    def pick_failed(self, now: float, exclude: Collection[str] = ()) -> str | None:
        """Return the least recently failed host that may be tried now, good ones first and quarantined ones last.

        None where there is no other host, or all were tried a moment ago: see `next_try`.
        """
        candidates = [c for c in self._records.items() if c[0] not in exclude and c[1].next_try <= now]
        if not candidates:
            return None
        name, record = min(
            candidates, key=lambda c: (c[1].quarantined, c[1].failed_at or float("-inf"), c[1].picked)
        )
        if record.failed_at is not None:
            record.next_try = now + _pause(record)
        return name

    def next_try(self, exclude: Collection[str] = ()) -> float | None:
        """Return the moment from which `pick_failed` gives a host; None where there is none at all."""
        moments = [record.next_try for name, record in self._records.items() if name not in exclude]
        return min(moments, default=None)

    def started(self, name: str) -> None:
        """Count a look-up that was sent to a host."""
        self._turn += 1
        record = self._records[name]
        record.outstanding += 1
        record.picked = self._turn

    def ended(self, name: str) -> None:
        """Count it out, however it ended."""
        self._records[name].outstanding -= 1

    def answered(self, name: str, now: float, speed_class: str, seconds: float) -> None:
        """Take in a good answer, before `ended`: the host is good again unless it is quarantined."""
        record = self._records[name]
        outstanding = max(1, record.outstanding)
        speed = record.speeds.setdefault(speed_class, _Speed(seconds, seconds / outstanding, now))
        speed.learn(seconds, outstanding, now)
        record.answered_at = now
        record.answers += 1
        record.failures_in_row, record.next_try = 0, 0.0
        if not record.quarantined:
            record.failed_at, record.reason, record.rests_until = None, None, 0.0

    def failed(self, name: str, now: float, reason: str, rest_s: float | None = None) -> bool:
        """Let a host rest for ``rest_s`` seconds, by default the retry interval; False where that is no news."""
        record = self._records[name]
        news = record.reason != reason
        record.failed_at, record.reason = now, reason
        record.failures += 1
        record.failures_in_row += 1
        record.next_try = now + _pause(record)
        record.rests_until = now + (self._retry_interval_s if rest_s is None else rest_s)
        return news

    def silent(self, name: str, since: float, now: float, reason: str) -> bool:
        """Let a host rest that has answered nothing at all ``since``; False where it is only slow."""
        if self._records[name].answered_at >= since:
            return False
        self.failed(name, now, reason)
        return True

    def quarantine(self, name: str, now: float, reason: str) -> bool:
        """Ask a host only as the last one from now on; False where that was so already."""
        known = self._records[name].quarantined
        self.failed(name, now, reason)
        self._records[name].quarantined = True
        return not known

    def silence_limit(self, name: str, speed_class: str, timeout_s: float) -> float:
        """Return the seconds after which another host is asked as well.

        Four times what is usual at its load and at least half a second; where nothing is known yet, a share of the
        time that leaves room for every other host.
        """
        record = self._records[name]
        share = timeout_s / (len(self._records) + 1)
        speed = record.speeds.get(speed_class)
        if speed is None:
            return max(min(SILENCE_FLOOR_S, timeout_s / 2), share)
        usual = speed.expected(record.outstanding)
        return min(max(SILENCE_FLOOR_S, _SILENCE_FACTOR * usual), timeout_s / 2)

    def view(self, now: float) -> tuple[HostView, ...]:
        """Return how every host stands."""
        return tuple(
            HostView(name, self._state(r, now), r.reason, r.answers, r.failures, r.outstanding)
            for name, r in self._records.items()
        )

    def _state(self, record: _Record, now: float) -> str:
        if record.quarantined:
            return "quarantined"
        return "resting" if record.rests_until > now else "good"

    def _good(self, record: _Record, now: float) -> bool:
        if record.quarantined or record.rests_until > now:
            return False
        return record.failed_at is None or record.outstanding == 0

    def _expected(self, records: dict[str, _Record], speed_class: str, now: float) -> dict[str, float]:
        """Return the seconds one more look-up takes at each host.

        The best speed stands for an unknown one, so that it gets known.
        """
        known = [r.speeds[speed_class] for r in records.values() if speed_class in r.speeds]
        best = min(known, key=lambda s: s.seconds, default=_Speed(1.0, 1.0, now))
        expected = {}
        for name, record in records.items():
            speed, next_one = record.speeds.get(speed_class, best), record.outstanding + 1
            least = best.expected(next_one)
            age = max(0.0, now - speed.learnt_at)
            expected[name] = least + (speed.expected(next_one) - least) * 0.5 ** (age / _FORGET_S)
        return expected


def _pause(record: _Record) -> float:
    """Return the seconds from one try of a failed host to the next."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(max(0, record.failures_in_row - 1), 10))
