"""What a validator lists, as the pool believes it: additions at once, deletions only once they are certain.

A list that was cut short, a database that was restored from an older backup, a proxy that answers for a server that is
down: each looks like the end of apps that earn money. So whatever is missing counts as gone only when consecutive
whole lists lack it, more of them where much is missing at once or nothing was said; a failed reading in between begins
the count anew. A person may confirm what the count has not.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from gpupool.fleet.offers import Listing

T = TypeVar("T")
CONFIRMATIONS: Final = 2
"""Whole lists in a row that must lack something before it is gone."""
LANDSLIDE_CONFIRMATIONS: Final = 10
"""The same where a landslide is missing: with a list a minute, ten minutes of certainty."""
LANDSLIDE_SHARE: Final = 0.5
LANDSLIDE_LEAST: Final = 3
"""More than this share of what is known, and at least so many things."""


@dataclass(frozen=True, slots=True)
class Difference(Generic[T]):
    """What one list has changed."""

    appeared: Mapping[str, T] = field(default_factory=dict)
    changed: Mapping[str, T] = field(default_factory=dict)
    gone: Mapping[str, T] = field(default_factory=dict)
    """With what they were last."""

    def __bool__(self) -> bool:
        return bool(self.appeared or self.changed or self.gone)


class Mirror(Generic[T]):
    """Everything of one kind that a validator lists, by id."""

    def __init__(self, known: Mapping[str, T] | None = None) -> None:
        """``known``: what was believed before a restart."""
        self._known: dict[str, T] = dict(known or {})
        self._missing: dict[str, int] = {}
        self.readings = 0
        """Whole lists taken since the start; with none, nothing can be said of what is not there."""

    @property
    def known(self) -> Mapping[str, T]:
        """What is believed, what is missing but not yet gone included."""
        return self._known

    @property
    def doubtful(self) -> Collection[str]:
        """What the last list lacked without being gone yet."""
        return self._missing.keys()

    def take(self, listing: Listing[T]) -> Difference[T]:
        """Take a whole list; what it holds but cannot be used stays what it was."""
        listed = listing.items
        appeared = {key: item for key, item in listed.items() if key not in self._known}
        changed = {
            key: item for key, item in listed.items() if key in self._known and self._known[key] != item
        }
        self._known.update(listed)
        self.readings += 1
        there = listed.keys() | listing.unusable.keys()
        self._missing = {key: self._missing.get(key, 0) + 1 for key in self._known if key not in there}
        needed = LANDSLIDE_CONFIRMATIONS if listing.silent or self._is_landslide() else CONFIRMATIONS
        gone = [key for key, times in self._missing.items() if times >= needed]
        return Difference(appeared, changed, {key: self.confirm(key) for key in gone})

    def fail(self) -> None:
        """Note that a list could not be had: what was missing must be confirmed from the beginning."""
        self._missing = dict.fromkeys(self._missing, 0)

    def announce(self, key: str, item: T) -> None:
        """Take one item that the validator has told by itself; what is there is not missing."""
        self._known[key] = item
        self._missing.pop(key, None)

    def confirm(self, key: str) -> T:
        """Let go of something for certain, and return what it was; KeyError where it is not known."""
        self._missing.pop(key, None)
        return self._known.pop(key)

    def _is_landslide(self) -> bool:
        missing = len(self._missing)
        return missing >= LANDSLIDE_LEAST and missing > LANDSLIDE_SHARE * len(self._known)
