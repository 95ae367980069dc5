"""A store that dies in a transaction of the test's choice, as a killed process would: just before the commit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gpupool.fleet.ports.store import Store, Writer


class CrashError(Exception):
    """Control has died."""


class CrashingStore:
    """A store whose process dies in the n-th transaction from now, just before it commits."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.crash_in: int | None = None

    def read(self) -> Any:
        """Open a consistent view."""
        return self._store.read()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Writer]:
        """Open a transaction."""
        async with self._store.write() as writer:
            yield writer
            if self.crash_in is not None:
                self.crash_in -= 1
                if self.crash_in <= 0:
                    raise CrashError

    async def close(self) -> None:
        """Give back every connection."""
        await self._store.close()
