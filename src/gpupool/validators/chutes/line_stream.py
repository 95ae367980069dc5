"""The validator's lists: a text of ``data: <json>`` lines that says neither how many come nor that it is whole.

Each item is one line and a blank one; an empty list of instances is the line ``data: NO_ITEMS``, of anything else no byte at
all. A stream that was cut between two items looks like a shorter list, and only `mirror` can guard against that.
Everything that can be told here is told: a line cut short, an item without its blank line, and anything that is neither
are no list, and silence is called silence.
"""

import json
from collections.abc import AsyncIterable
from typing import Any, Final

from gpupool.core.errors import UnavailableError
from gpupool.core.nesting import is_deeper

MOST_LINE_BYTES: Final = 8 * 1024 * 1024
"""An app's code alone may have 150,000 characters, each six bytes when escaped, and its readme as many."""
MOST_ITEMS: Final = 200_000
MOST_BYTES: Final = 1024 * 1024 * 1024
_DATA: Final = b"data: "
_NOTHING: Final = b"NO_ITEMS"


class BrokenListError(UnavailableError):
    """The validator's list is not whole."""

    code = "broken_list"
    default_remedy = "Nothing was changed; the pool asks again by itself."


class LineStream:
    """Takes a list apart as its bytes come, in pieces of any size."""

    def __init__(self, name: str) -> None:
        """``name``: what is listed, for errors."""
        self.items: list[dict[str, Any]] = []
        self._name = name
        self._rest = bytearray()
        self._bytes = 0
        self._searched = 0
        self._blank_due = False
        self._none = False

    def feed(self, data: bytes) -> None:
        """Take more; raise BrokenListError where it is no list, or beyond the limits."""
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            raise self._broken(f"is longer than {MOST_BYTES} bytes")
        self._rest += data
        begin = 0
        while (end := self._rest.find(b"\n", max(begin, self._searched))) >= 0:
            self._take(bytes(self._rest[begin:end]))
            begin = end + 1
            self._searched = begin
        del self._rest[:begin]
        self._searched = len(self._rest)
        if len(self._rest) > MOST_LINE_BYTES:
            raise self._broken(f"has a line of more than {MOST_LINE_BYTES} bytes")

    @property
    def silent(self) -> bool:
        """Whether nothing was listed, and not even that was said."""
        return not self.items and not self._none

    def end(self) -> list[dict[str, Any]]:
        """Return the items of a list that has come to its end; raise BrokenListError where it cannot have."""
        if self._rest:
            raise self._broken("ends within a line")
        if self._blank_due:
            raise self._broken("ends within an item")
        return self.items

    def _take(self, line: bytes) -> None:
        if not line:
            self._blank_due = False
        elif line.startswith(b":"):
            pass  # a sign of life, as in any event stream
        elif self._blank_due or not line.startswith(_DATA):
            raise self._broken("holds a line that is no item")
        elif line[len(_DATA) :] == _NOTHING:
            self._none = True
        else:
            self._blank_due = True
            self._keep(line[len(_DATA) :])
        if self._none and self.items:
            raise self._broken("says that nothing is there, and lists something")

    def _keep(self, text: bytes) -> None:
        if len(text) > MOST_LINE_BYTES or len(self.items) >= MOST_ITEMS:
            raise self._broken(f"is beyond {MOST_ITEMS} items, or an item beyond {MOST_LINE_BYTES} bytes")
        try:
            item = None if is_deeper(text) else json.loads(text)
        except ValueError:
            item = None
        if not isinstance(item, dict):
            raise self._broken(f"holds, as number {len(self.items) + 1}, what is no item")
        self.items.append(item)

    def _broken(self, what: str) -> BrokenListError:
        return BrokenListError(f"The validator's list of {self._name} {what}.")


async def read_list(name: str, chunks: AsyncIterable[bytes]) -> LineStream:
    """Return a list that has come to its end."""
    stream = LineStream(name)
    async for chunk in chunks:
        stream.feed(chunk)
    stream.end()
    return stream
