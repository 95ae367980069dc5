"""The bus that PostgreSQL brings along: LISTEN and NOTIFY, for a pool without Redis.

A notification holds 8000 bytes at most, so it says that there are events, and leaves them where they are.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import asyncpg

from gpupool.bus.wire import decode, encode
from gpupool.core.errors import UnavailableError
from gpupool.fleet.ports.bus import News

CHANNEL: Final = "gpupool_news"
CONNECT_SECONDS: Final = 5.0
_MOST_BYTES: Final = 7000
_ANSWER_SECONDS: Final = 3.0


class NotifyBus:
    """`fleet.ports.bus.Bus` on a PostgreSQL database; ``where``: its address, with the password."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._sender: asyncpg.Connection[Any] | None = None
        self._turn = asyncio.Lock()

    async def publish(self, news: News) -> None:
        """Send news to every subscriber; UnavailableError where the database cannot be reached."""
        text = encode(replace(news, events=None if news.events else ()), _MOST_BYTES)
        async with self._turn:
            try:
                if self._sender is None or self._sender.is_closed():
                    self._sender = await self._connect()
                await self._sender.execute("SELECT pg_notify($1, $2)", CHANNEL, text)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                self._drop_sender()
                raise _lost(error) from error

    @asynccontextmanager
    async def subscribe(self, reader: str) -> AsyncIterator[AsyncIterator[News]]:
        """Return the news from now on; nothing is kept for a reader that is away."""
        waiting: asyncio.Queue[News | None] = asyncio.Queue()

        def told(_: object, __: int, ___: str, text: object) -> None:
            waiting.put_nowait(decode(str(text)))

        try:
            connection = await self._connect()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise _lost(error) from error
        try:
            try:
                connection.add_termination_listener(lambda _: waiting.put_nowait(None))
                await connection.add_listener(CHANNEL, told)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                raise _lost(error) from error
            yield _all(waiting)
        finally:
            connection.terminate()

    async def close(self) -> None:
        """Give back the connection."""
        async with self._turn:
            self._drop_sender()

    def _drop_sender(self) -> None:
        if self._sender is not None:
            self._sender.terminate()
            self._sender = None

    async def _connect(self) -> "asyncpg.Connection[Any]":
        return await asyncpg.connect(
            self._where,
            timeout=CONNECT_SECONDS,
            command_timeout=_ANSWER_SECONDS,
            server_settings={"application_name": "gpupool"},
        )


async def _all(waiting: "asyncio.Queue[News | None]") -> AsyncIterator[News]:
    while True:
        news = await waiting.get()
        if news is None:
            raise UnavailableError("The connection on which PostgreSQL tells of changes was lost.")
        yield news


def _lost(error: Exception) -> UnavailableError:
    told = str(error).partition("\n")[0] or type(error).__name__
    return UnavailableError(f"PostgreSQL cannot carry news: {told}.")
