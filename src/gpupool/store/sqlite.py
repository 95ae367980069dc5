"""SQLite as the pool uses it: many readers beside one writer, and nothing acknowledged is ever lost.

WAL lets readers go on while a writer works; ``synchronous=FULL`` syncs the log before a commit returns. Writers take
the write lock at BEGIN, not at their first change, so that what a transaction has read still holds when it writes.
Readers get connections that cannot write. Transactions begin and end exactly where we say (no driver magic).
"""

from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

READERS: Final = 4
"""Connections that read at the same time; more only makes threads wait for one another."""
BUSY_MILLISECONDS: Final = 250
"""How long one statement waits inside SQLite for another process's lock; the store tries again after that."""
_PRAGMAS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    f"PRAGMA busy_timeout={BUSY_MILLISECONDS}",
    "PRAGMA journal_size_limit=67108864",
)


def writer_engine(path: Path) -> AsyncEngine:
    """Return the engine of the only writing connection of this process."""
    return _engine(path, begin="BEGIN IMMEDIATE", pragmas=_PRAGMAS, connections=1)


def reader_engine(path: Path) -> AsyncEngine:
    """Return the engine of the connections that read."""
    return _engine(path, begin="BEGIN", pragmas=(*_PRAGMAS, "PRAGMA query_only=ON"), connections=READERS)


def _engine(path: Path, *, begin: str, pragmas: tuple[str, ...], connections: int) -> AsyncEngine:
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)),
        connect_args={"isolation_level": None},
        pool_size=connections,
        max_overflow=0,
        pool_timeout=30,
    )

    @event.listens_for(engine.sync_engine, "connect")
    def _set_up(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        try:
            for pragma in pragmas:
                cursor.execute(pragma)
        finally:
            cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
