"""News within the process: wakes whoever waits for the next committed change.

Long polls, command streams and the reconciler wait here instead of asking the store over and over. A signal says
only that something has changed; what has changed is read from the store, so a missed signal loses nothing.
"""

import asyncio
from collections.abc import Callable


class Changes:
    """Counts committed changes and wakes waiters."""

    def __init__(self, seq: int = 0) -> None:
        self.seq = seq
        """``seq`` of the newest committed event: the revision of every view."""
        self.count = 0
        """Grows with everything that may alter a view, events or not."""
        self.closed = False
        self._next = asyncio.Event()

    def announce(self, seq: int | None = None) -> None:
        """Wake all waiters; ``seq`` is that of the newest committed event, None when there was no new one."""
        self.count += 1
        self.seq = max(self.seq, seq or 0)
        woken, self._next = self._next, asyncio.Event()
        woken.set()

    def close(self) -> None:
        """Wake all waiters for good: every later wait returns at once."""
        self.closed = True
        self.announce()

    async def after(self, count: int, seconds: float) -> bool:
        """Wait until something has changed since ``count``, at most ``seconds``; False when nothing has."""
        return await self.until(lambda: self.count != count, seconds)

    async def until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``ready`` holds, at most ``seconds``; False when time is up or the process is ending."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not ready():
            if self.closed:
                return False
            signal = self._next
            try:
                async with asyncio.timeout_at(deadline):
                    await signal.wait()
            except TimeoutError:
                return ready()
        return True
