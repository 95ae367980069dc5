"""The bus within one process: what a pool of one control has, and the measure for every other bus."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from gpupool.core.errors import UnavailableError
from gpupool.fleet.ports.bus import News

MOST_WAITING: Final = 10_000
"""News that a reader may be behind by; beyond that the oldest are dropped, and it reads on in the store."""


class MemoryBus:
    """`fleet.ports.bus.Bus` without a server."""

    def __init__(self) -> None:
        self._readers: dict[str, asyncio.Queue[News]] = {}
        self._closed = False

    async def publish(self, news: News) -> None:
        """Send news to every subscriber."""
        if self._closed:
            raise UnavailableError("The bus is closed.")
        for waiting in self._readers.values():
            if waiting.full():
                waiting.get_nowait()
            waiting.put_nowait(news)

    @asynccontextmanager
    async def subscribe(self, reader: str) -> AsyncIterator[AsyncIterator[News]]:
        """Return the news from now on."""
        if self._closed:
            raise UnavailableError("The bus is closed.")
        waiting = self._readers[reader] = asyncio.Queue(MOST_WAITING)
        try:
            yield _all(waiting)
        finally:
            if self._readers.get(reader) is waiting:
                del self._readers[reader]

    async def close(self) -> None:
        """Take nothing more."""
        self._closed = True


async def _all(waiting: asyncio.Queue[News]) -> AsyncIterator[News]:
    while True:
        yield await waiting.get()
