"""One line and one count a request, cheap enough to be always on: lines are gathered and written some times a second.

The words are those that operators of the original proxy search their logs for; what it never told follows in
brackets. A log that cannot be written must not stop lookups, so lines are dropped and counted then.
"""

import os
from time import time_ns
from typing import Final

from gpupool.recompute.proxy.tallies import Tallies

_MOST_WAITING: Final = 20_000


class RequestLog:
    """Gathers lines and writes them to a file descriptor."""

    def __init__(self, descriptor: int = 2, *, enabled: bool = True) -> None:
        self._descriptor = descriptor
        self._lines: list[str] = []
        self._rest = b""
        self.enabled = enabled
        self.dropped = 0
        self._tallies: Tallies | None = None

    def count_into(self, tallies: Tallies) -> Tallies:
        """Count every request into ``tallies``; return them."""
        self._tallies = tallies
        return tallies

    def forwarded(
        self,
        client: str,
        node: str,
        request: str,
        kind: str,
        milliseconds: float,
        result: str,
        tries: int,
        now: float,
    ) -> None:
        """Note a request's end, ``now`` on the monotonic clock; ``node`` is the one that answered, or ``-``."""
        if self._tallies is not None:
            self._tallies.ended(client, node, kind, milliseconds, result, tries, now)
        if not self.enabled:
            return
        if len(self._lines) >= _MOST_WAITING:
            self.dropped += 1
            return
        self._lines.append(
            f"[{time_ns() // 1_000_000}] Request from {client} forwarded to node {node}"
            f" (id = {request}, kind = {kind}, ms = {milliseconds:.1f}, tries = {tries}, result = {result})\n"
        )

    def flush(self) -> None:
        """Write what was gathered."""
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
