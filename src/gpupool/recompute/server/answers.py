"""Answers already found, for whoever asks the same again: a harvester that timed out, a proxy that asks twice.

An answer is a fact about a plot and never grows old, so only space limits what is kept. The whole question is the key.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

ENTRIES: Final = 1024
BYTES: Final = 4 << 20
_BYTES_A_NUMBER: Final = 40
"""Of a Python integer and its place in a tuple."""
_BYTES_AN_ENTRY: Final = 600


class KnownAnswers:
    """The latest answers, the longest unused of which make room."""

    def __init__(self, entries: int = ENTRIES, size: int = BYTES) -> None:
        """At most ``entries`` answers and about ``size`` bytes, questions included."""
        self._most, self._most_bytes = entries, size
        self._known: OrderedDict[Hashable, tuple[tuple[int, ...], int]] = OrderedDict()
        self.bytes = 0
        """As estimated."""
        self.hits = 0
        """Questions that were answered from here."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, question: Hashable) -> tuple[int, ...] | None:
        """Return the answer to a question that was answered before."""
        found = self._known.get(question)
        if found is None:
            return None
        self._known.move_to_end(question)
        self.hits += 1
        return found[0]

    def put(self, question: Hashable, xs: tuple[int, ...], numbers: int) -> None:
        """Keep an answer; ``numbers``: how many numbers its question has."""
        size = _BYTES_AN_ENTRY + _BYTES_A_NUMBER * (len(xs) + numbers)
        self._drop(question)
        self._known[question] = xs, size
        self.bytes += size
        while len(self._known) > self._most or self.bytes > self._most_bytes:
            self._drop(next(iter(self._known)))

    def _drop(self, question: Hashable) -> None:
        found = self._known.pop(question, None)
        if found is not None:
            self.bytes -= found[1]
