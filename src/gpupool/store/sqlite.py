"""SQLite as the pool uses it: many readers beside one writer, and nothing acknowledged is ever lost.

WAL lets readers go on while a writer works; ``synchronous=FULL`` syncs the log before a commit returns. Writers take
the write lock at BEGIN, not at their first change, so that what a transaction has read still holds when it writes.
Readers get connections that cannot write. Transactions begin and end exactly where we say (no driver magic).
"""

from pathlib import Path
from typing import Final

import aiosqlite
from sqlalchemy import AsyncAdaptedQueuePool, Connection, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gpupool.store.driver import HopConnection

READERS: Final = 4
"""Connections that read at the same time; more only makes threads wait for one another."""
_WRITER_BUSY: Final = "PRAGMA busy_timeout=250"
"""Milliseconds that one attempt to take the write lock may block the writer's thread; the store tries again after it."""
_READER_BUSY: Final = "PRAGMA busy_timeout=10000"
"""Readers wait only while another process recovers or removes the log, which is short."""
POOL_SECONDS: Final = 30.0
"""How long a reader waits for a connection."""
_PRAGMAS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA journal_size_limit=67108864",
)


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
