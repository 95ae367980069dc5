"""Server-sent events on their way through: each event leaves as soon as its last byte is here.

Events end at an empty line, and lines end with LF, CR or CR LF (all three are legal), wherever the network cuts. Only the
data of an event that names a model is looked into; comments, other fields, unknown data and their very bytes pass as
they are.
"""

import re
from collections.abc import Iterator
from typing import Final

from gpupool.gateway.naming import MARK, ModelName

MAX_EVENT_BYTES: Final = 1024 * 1024
_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE: Final = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")
_LONGEST_END: Final = 4


class EventTooLargeError(Exception):
    """An upstream sent an event larger than the limit."""


class EventStream:
    """Renames the model in one stream of events, fed in pieces of any size."""

    def __init__(self, model: ModelName, limit: int = MAX_EVENT_BYTES) -> None:
        self._model = model
        self._limit = limit
        self._buffer = b""
        self.finished = False
        """Whether the closing ``[DONE]`` has passed."""

    def feed(self, piece: bytes) -> bytes:
        """Take the next piece and return every event that is now whole; raise EventTooLargeError above the limit."""
        start = max(0, len(self._buffer) - _LONGEST_END)
        buffer, done = self._buffer + piece, 0
        events = []
        for end in _ends(buffer, start):
            events.append(self._pass(buffer[done:end]))
            done = end
        self._buffer = buffer[done:]
        if len(self._buffer) > self._limit:
            raise EventTooLargeError
        return b"".join(events)

    def rest(self) -> bytes:
        """Return what is left when the upstream ended in good order without a last empty line."""
        rest, self._buffer = self._buffer, b""
        return self._pass(rest)

    def _pass(self, event: bytes) -> bytes:
        if len(event) > self._limit:
            raise EventTooLargeError
        if MARK in event:
            return rename_in_event(event, self._model)
        if b"[DONE]" in event and event.strip().removeprefix(b"data:").strip() == b"[DONE]":
            self.finished = True
        return event


def _ends(buffer: bytes, start: int) -> Iterator[int]:
    """Give the place after each empty line, looked for from ``start``."""
    if b"\r" in buffer:
        yield from (match.end() for match in _END.finditer(buffer, start))
        return
    while (at := buffer.find(b"\n\n", start)) >= 0:
        start = at + 2
        yield start


def rename_in_event(event: bytes, model: ModelName) -> bytes:
    """Return one event with the model renamed in its data, which may be spread over several ``data`` lines."""
    if event.startswith(b"data:") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        data = _value(event[:-2])
        renamed = model.put_into(data)
        return event if renamed is data else event[: len(event) - len(data) - 2] + renamed + b"\n\n"
    lines = [(match[1], match[2]) for match in _LINE.finditer(event) if match[0]]
    places = [index for index, (line, _) in enumerate(lines) if line.startswith(b"data:")]
    data = b"\n".join(_value(lines[index][0]) for index in places)
    renamed = model.put_into(data)
    if renamed is data or renamed == data:
        return event
    first, *others = places
    line, ending = lines[first]
    prefix = line[: len(line) - len(_value(line))]
    lines[first] = (b"\n".join(prefix + part for part in renamed.split(b"\n")), ending)
    return b"".join(line + ending for index, (line, ending) in enumerate(lines) if index not in others)


def _value(line: bytes) -> bytes:
    """Return what a ``data`` line says, without the one space that may follow the colon."""
    return line[5:].removeprefix(b" ")
