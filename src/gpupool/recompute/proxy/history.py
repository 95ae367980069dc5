"""What one client or one node did, minute by minute and hour by hour, in a few kilobytes at most.

Points are kept flat in arrays of 32-bit numbers, because a thousand clients with two hundred points each would cost
tens of megabytes as objects. Minutes without a request have no point. The newest hour grows with its minutes.
"""

import base64
import binascii
import sys
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

MINUTES_KEPT: Final = 120
HOURS_KEPT: Final = 168
_FIELDS: Final = 5
_MOST: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Point:
    """One minute or hour.

    Attributes:
        start: wall time of its beginning, seconds since 1970.
        requests: how many ended.
        failed: those that had no good answer.
        mean_ms: of those answered; 0 when none was.
        worst_ms: the slowest one answered.
    """

    start: int
    requests: int
    failed: int
    mean_ms: float
    worst_ms: int


class Series:
    """Points of one length, oldest first; the oldest give way."""

    __slots__ = ("_kept", "_numbers", "_seconds")

    def __init__(self, seconds: int, kept: int) -> None:
        self._seconds = seconds
        self._kept = kept
        self._numbers = array("I")

    def add(self, wall: float, requests: int, failed: int, total_ms: float, worst_ms: float) -> None:
        """Count what ended before ``wall`` (seconds since 1970) into its point.

        A clock that was set back adds to the newest point, so that the order always holds.
        """
        number, numbers = int(wall) // self._seconds, self._numbers
        if not numbers or number > numbers[-_FIELDS]:
            numbers.extend((number, 0, 0, 0, 0))
            if len(numbers) > self._kept * _FIELDS:
                del numbers[:_FIELDS]
        numbers[-4] = min(_MOST, numbers[-4] + requests)
        numbers[-3] = min(_MOST, numbers[-3] + failed)
        numbers[-2] = min(_MOST, numbers[-2] + int(total_ms))
        numbers[-1] = max(numbers[-1], min(_MOST, int(worst_ms)))

    def points(self) -> list[Point]:
        """Return all of them, oldest first."""
        rows = [self._numbers[at : at + _FIELDS] for at in range(0, len(self._numbers), _FIELDS)]
        return [
            Point(number * self._seconds, requests, failed, total / max(1, requests - failed), worst)
            for number, requests, failed, total, worst in rows
        ]

    def packed(self) -> bytes:
        """Return a copy as little-endian bytes, quick enough to be taken between two requests."""
        return _little(self._numbers).tobytes()

    def unpack(self, data: bytes) -> None:
        """Take what `packed` gave; raise ValueError where it cannot be that."""
        size = _FIELDS * 4
        if len(data) % size or len(data) > self._kept * size:
            raise ValueError(f"{len(data)} bytes are no history")
        numbers = array("I")
        numbers.frombytes(data)
        numbers = _little(numbers)
        moments = numbers[::_FIELDS]
        if any(later <= earlier for earlier, later in pairwise(moments)):
            raise ValueError("the moments of a history do not grow")
        self._numbers = numbers


class History:
    """Both series of one client or node."""

    __slots__ = ("hours", "minutes")

    def __init__(self) -> None:
        self.minutes = Series(60, MINUTES_KEPT)
        self.hours = Series(3600, HOURS_KEPT)

    def add(self, wall: float, requests: int, failed: int, total_ms: float, worst_ms: float) -> None:
        """Count a minute's requests into both."""
        self.minutes.add(wall, requests, failed, total_ms, worst_ms)
        self.hours.add(wall, requests, failed, total_ms, worst_ms)

    def packed(self) -> tuple[bytes, bytes]:
        """Return minutes and hours for `unpack`."""
        return self.minutes.packed(), self.hours.packed()


def to_text(data: bytes) -> str:
    """Return bytes as text for a JSON file."""
    return base64.b64encode(data).decode("ascii")


def from_text(text: object) -> bytes:
    """Return the bytes of `to_text`; raise ValueError or TypeError where it is none."""
    if not isinstance(text, str):
        raise TypeError("a packed history is a text")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("a packed history is base64") from error


def _little(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return numbers
    swapped = array("I", numbers)
    swapped.byteswap()
    return swapped
