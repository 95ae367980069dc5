"""One line and one count a request, cheap enough to be always on: ends are gathered, and worked off some times a second.

A request pays for nothing but a tuple in a list; lines and counts are made of many at once, which costs half of it.
The words are those that operators of the original proxy search their logs for; what it never told follows in
brackets. A log that cannot be written must not stop lookups, so lines are dropped and counted then.
"""

import os
import time
from collections.abc import Callable
from typing import Final

from gpupool.recompute.proxy.tallies import Ended, Tallies

_MOST_WAITING: Final = 20_000


class RequestLog:
    """Gathers ends of requests, counts them and writes a line each to a file descriptor."""

    def __init__(self, descriptor: int = 2, *, enabled: bool = True) -> None:
        self._descriptor = descriptor
        self._ended: list[Ended] = []
        self.forwarded = self._ended.append
        """Notes a request's end."""
        self._lines: list[str] = []
        self._rest = b""
        self.enabled = enabled
        self.dropped = 0
        self._tallies: Tallies | None = None
        self._clock: Callable[[], float] = time.monotonic

    def count_into(self, tallies: Tallies, clock: Callable[[], float]) -> Tallies:
        """Count every request into ``tallies``, which has its time from ``clock``; return them."""
        self._tallies, self._clock = tallies, clock
        return tallies

    def settle(self) -> None:
        """Count what has ended, and make its lines; whoever reads the tallies wants that done."""
        ended = self._ended
        if not ended:
            return
        if self._tallies is not None:
            self._tallies.take(ended)
        if self.enabled:
            room = max(0, _MOST_WAITING - len(self._lines))
            self.dropped += max(0, len(ended) - room)
            epoch = time.time() - self._clock()
            self._lines += [
                f"[{int((epoch + now) * 1000)}] Request from {client} forwarded to node {node} (id = {request},"
                f" kind = {kind}, ms = {milliseconds:.1f}, tries = {tries}, result = {result})\n"
                for client, node, request, kind, milliseconds, result, tries, now in ended[:room]
            ]
        ended.clear()

    def flush(self) -> None:
        """Settle, and write what was gathered."""
        self.settle()
        if not (self._lines or self._rest):
            return
        data = self._rest + "".join(self._lines).encode("utf-8", "replace")
        count = len(self._lines)
        self._lines.clear()
        self._rest = b""
        try:
            written = os.write(self._descriptor, data)
        except BlockingIOError:
            self._rest = data if len(data) < 4_000_000 else b""
        except OSError:
            self.dropped += count
        else:
            self._rest = data[written:]
