"""From "something is wrong now" to messages that people bear: held, grouped, limited, and ended by a recovery note.

A trouble is told once it has lasted, and told as over once it has stayed away. What comes within a few seconds goes
out as one message, and messages keep a distance. Pure: time is passed in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpupool.recompute.proxy.alert_rules import (
    CLIENT_SILENT,
    CONTROL_LOST,
    HARVESTER_LOST,
    LOOKUPS_LOST,
    NO_NODE,
    NODE_DOWN,
    NODE_SLOW,
    Troubles,
)

GROUP_SECONDS: Final = 5.0
"""The first event of a message waits so long for others."""
DISTANCE_SECONDS: Final = 60.0
"""Between two messages."""
MOST_EVENTS: Final = 200
"""In one message; what goes beyond is counted."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Seconds for which a trouble must last, and stay away."""

    rise: float
    fall: float


HOLDS: Final[Mapping[str, Hold]] = {
    NODE_DOWN: Hold(3.0, 10.0),
    NODE_SLOW: Hold(30.0, 60.0),
    NO_NODE: Hold(2.0, 5.0),
    CLIENT_SILENT: Hold(0.0, 0.0),
    LOOKUPS_LOST: Hold(0.0, 0.0),
    HARVESTER_LOST: Hold(0.0, 0.0),
    CONTROL_LOST: Hold(300.0, 10.0),
}


@dataclass(frozen=True, slots=True)
class Event:
    """Something began or ended; ``since`` and ``until`` (None while it lasts) are wall times."""

    alert: str
    subject: str
    why: str
    since: float
    until: float | None = None

    @property
    def words(self) -> str:
        """Return it as a line for people."""
        what = f"{self.alert.replace('_', ' ')}: {self.subject}"
        if self.until is None:
            return f"{what} ({self.why})"
        return f"over after {self.until - self.since:.0f} s: {what}"


@dataclass(slots=True)
class _Trouble:
    why: str
    since: float
    began: float
    last: float
    told: bool = False


class Alarms:
    """Which troubles last."""

    def __init__(self) -> None:
        self._troubles: dict[tuple[str, str], _Trouble] = {}

    def look(self, found: Troubles, now: float, wall: float) -> list[Event]:
        """Take what is wrong at ``now`` (monotonic seconds) and ``wall``; return what is to be told because of it."""
        events = []
        for key, why in found.items():
            trouble = self._troubles.setdefault(key, _Trouble(why, wall, now, now))
            trouble.why, trouble.last = why, now
            if not trouble.told and now - trouble.began >= HOLDS[key[0]].rise:
                trouble.told = True
                events.append(Event(*key, why, trouble.since))
        for key in [key for key in self._troubles if key not in found]:
            trouble = self._troubles[key]
            if trouble.told and now - trouble.last < HOLDS[key[0]].fall:
                continue
            del self._troubles[key]
            if trouble.told:
                events.append(Event(*key, trouble.why, trouble.since, wall))
        return events

    def firing(self) -> list[Event]:
        """Return what has been told and is not over."""
        return [Event(*key, it.why, it.since) for key, it in self._troubles.items() if it.told]


class Outbox:
    """Events that wait for their message."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._dropped = 0
        self._first = 0.0
        self._sent: float | None = None

    def add(self, events: list[Event], now: float) -> None:
        """Take events at ``now``."""
        if events and not self._events:
            self._first = now
        room = MOST_EVENTS - len(self._events)
        self._events += events[:room]
        self._dropped += len(events[room:])

    def due(self, now: float) -> tuple[list[Event], int] | None:
        """Return the events of a message and how many were left out, once it is time; else None."""
        if not self._events or now - self._first < GROUP_SECONDS:
            return None
        if self._sent is not None and now - self._sent < DISTANCE_SECONDS:
            return None
        taken = self._events, self._dropped
        self._events, self._dropped, self._sent = [], 0, now
        return taken
