"""Who follows the endpoints feed, and when each was heard last: how control notices that a proxy or gateway is gone.

A follower is a protocol at a machine; several processes of one kind there count as one. Kept in memory; controls on
one database tell each other whom they have heard.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

from gpupool.core.clock import Clock
from gpupool.fleet.ports.sharing import Hearing

MOST: Final = 1000
PREFIX: Final = "follower:"
"""Stands before a follower's name where it is told beside those of nodes."""
_NAME: Final = re.compile(r"[a-z]{1,20}\.[A-Za-z0-9._-]{1,70}")
_NEWS_SECONDS: Final = 60.0
"""One that has followed for less was somebody's single question."""


class Followers:
    """The followers heard in this run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._fresh: set[str] = set()

    def heard(self, name: str) -> None:
        """Note that a follower asks; what is no name of one, and whoever comes when there are too many, is passed over."""
        if name not in self._first and (len(self._first) >= MOST or not _NAME.fullmatch(name)):
            return
        now = self._clock.monotonic()
        self._first.setdefault(name, now)
        self._last[name] = now
        self._fresh.add(name)

    def news(self) -> Collection[str]:
        """Return who was heard here since the last call."""
        fresh, self._fresh = self._fresh, set()
        return fresh

    def learn(self, hearings: Mapping[str, Hearing]) -> None:
        """Take in whom other controls have heard."""
        now = self._clock.monotonic()
        for subject, hearing in hearings.items():
            name = subject.removeprefix(PREFIX)
            if name == subject:
                continue
            if name in self._first or (len(self._first) < MOST and _NAME.fullmatch(name)):
                self._first[name] = min(self._first.get(name, now), now - hearing.known)
                self._last[name] = max(self._last.get(name, 0.0), now - hearing.silent)

    def quiet(self) -> dict[str, float]:
        """Return, for each that has followed for a minute, the seconds since it last asked."""
        now = self._clock.monotonic()
        return {
            name: now - last for name, last in self._last.items() if last - self._first[name] >= _NEWS_SECONDS
        }

    def known(self) -> Collection[str]:
        """Return the names of all that were heard."""
        return self._last.keys()
