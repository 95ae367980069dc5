"""SQLite as the pool uses it: many readers beside one writer, and nothing acknowledged is ever lost.

WAL lets readers go on while a writer works; ``synchronous=FULL`` syncs the log before a commit returns. Writers take
the write lock at BEGIN, not at their first change, so that what a transaction has read still holds when it writes.
Readers get connections that cannot write. Transactions begin and end exactly where we say (no driver magic).
"""

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import aiosqlite
from sqlalchemy import AsyncAdaptedQueuePool, Connection, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gpupool.core.clock import Clock, SystemClock
from gpupool.core.errors import StorageError
from gpupool.store.driver import HopConnection
from gpupool.store.faults import is_busy, translated

READERS: Final = 4
"""Connections that read at the same time; more only makes threads wait for one another."""
_WRITER_BUSY: Final = "PRAGMA busy_timeout=250"
"""Milliseconds that one attempt to take the write lock may block the writer's thread; the store tries again after it."""
_READER_BUSY: Final = "PRAGMA busy_timeout=10000"
"""Readers wait only while another process recovers or removes the log, which is short."""
BUSY_SECONDS: Final = 15.0
"""How long a writer waits for the write lock of another process."""
POOL_SECONDS: Final = 30.0
"""How long a reader waits for a connection."""
_PRAGMAS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA journal_size_limit=67108864",
)


class SqliteDatabase:
    """`store.database.Database` over a file; a writer waits ``busy_seconds`` for another process's lock."""

    def __init__(self, path: Path, *, busy_seconds: float = BUSY_SECONDS, clock: Clock | None = None) -> None:
        self._path, self._busy_seconds, self._clock = path, busy_seconds, clock or SystemClock()
        self.readers = reader_engine(path)
        self.writers = writer_engine(path)

    async def begin_writing(self, connection: AsyncConnection) -> None:
        """Take the write lock; StorageError when another process keeps it for longer than the limit."""
        give_up = self._clock.monotonic() + self._busy_seconds
        while not await _has_begun(connection):
            if self._clock.monotonic() >= give_up:
                raise StorageError(
                    f"Another process has kept the database locked for {self._busy_seconds:g} s.",
                    remedy="Find it with `fuser` on the database file, and end it; then try again.",
                )
            # A little chance keeps two waiting processes from knocking in step.
            await asyncio.sleep(random.uniform(0.001, 0.02))

    async def forget_overwritten(self) -> None:
        """Write the file anew."""
        await asyncio.to_thread(_written_anew, self._path)


async def _has_begun(connection: AsyncConnection) -> bool:
    with translated():
        try:
            await connection.begin()
        except OperationalError as error:
            if is_busy(error):
                return False
            raise
        return True


def _written_anew(path: Path) -> None:
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise StorageError(f"The database {path} cannot be written anew: {error}.") from error


def writer_engine(path: Path) -> AsyncEngine:
    """Return the engine of the only writing connection of this process; its transactions take the write lock."""
    engine = _engine(path, (_WRITER_BUSY, *_PRAGMAS), connections=1)
    event.listen(engine.sync_engine, "begin", _begin_immediate)
    return engine


def reader_engine(path: Path) -> AsyncEngine:
    """Return the engine of the connections that read; their transactions begin with their first statement."""
    return _engine(
        path, (_READER_BUSY, *_PRAGMAS, "PRAGMA query_only=ON"), connections=READERS, begin="BEGIN"
    )


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _engine(
    path: Path, pragmas: tuple[str, ...], *, connections: int, begin: str | None = None
) -> AsyncEngine:
    async def connect() -> aiosqlite.Connection:
        return await HopConnection(path, pragmas, begin)

    return create_async_engine(
        "sqlite+aiosqlite://",
        async_creator=connect,
        poolclass=AsyncAdaptedQueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=POOL_SECONDS,
        # Parameters hold what people put into their workloads' environment; no log line needs them.
        hide_parameters=True,
    )
