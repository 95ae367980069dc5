"""PostgreSQL as the pool uses it: many readers beside one writer at a time, of however many processes.

A writer takes an advisory lock of the whole database first and gives it back with its commit or rollback; so what it
has read still holds when it writes, nothing is ever retried, and events become visible in the order of their numbers.
The lock is the server's: a writer that is paused inside its transaction, or cut off, loses both after a few seconds,
and what it does once it wakes is refused. Readers see one snapshot each and cannot write.
"""

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import partial
from typing import Any, Final

import asyncpg
from sqlalchemy import AsyncAdaptedQueuePool
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gpupool.core.errors import StorageError
from gpupool.store.faults import is_busy, refused_connection, translated
from gpupool.store.postgres_url import PostgresUrl

READERS: Final = 8
POOL_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0
STATEMENT_SECONDS: Final = 60.0
"""The longest a statement may take; the largest lists take well under one."""
PAUSED_SECONDS: Final = 5.0
"""How long a writer may do nothing inside its transaction; it holds up all the others."""
WRITER_LOCK: Final = 0x6770_7570_6F6F_6C01
"""Key of the advisory lock that writers take; a migration is a writer too. Such keys are a database's own."""
CONTROL_LOCK: Final = WRITER_LOCK + 1
"""Key of the lock that a control's writing connection shares with those of other controls as long as it lives."""
_KEEPALIVE: Final = {
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
"""A peer that is gone without a word is given up after 30 s."""


class Work(Enum):
    """In which capacity a process writes."""

    TOOL = auto()
    CONTROL = auto()
    ALONE = auto()


class PostgresDatabase:
    """`store.database.Database` on a PostgreSQL server; a writer waits ``busy_seconds`` for its turn.

    ``work``: `Work.CONTROL` beside other controls, `Work.ALONE` where none works on it; that right is lost together
    with the connection, and taken up again with the next one where it is still free.
    """

    def __init__(
        self,
        where: PostgresUrl,
        *,
        busy_seconds: float,
        work: Work = Work.TOOL,
        paused_seconds: float = PAUSED_SECONDS,
    ) -> None:
        self._where, self._busy_seconds, self._work = where, busy_seconds, work
        paused = {"idle_in_transaction_session_timeout": str(int(paused_seconds * 1000))}
        # Zero would mean for ever.
        turn = {"lock_timeout": str(max(1, int(busy_seconds * 1000))), "synchronous_commit": "on"}
        readers = _engine(READERS, partial(connect, where, {}))
        self.readers: AsyncEngine = readers.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        self.writers: AsyncEngine = _engine(1, partial(self._connect_writer, paused | turn))

    async def begin_writing(self, connection: AsyncConnection) -> None:
        """Wait for the other writers' turns to end; StorageError where they take longer than the limit."""
        with translated():
            await connection.begin()
            try:
                await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITER_LOCK})")
            except DBAPIError as error:
                if is_busy(error):
                    raise self._too_long() from error
                raise

    async def _connect_writer(self, settings: dict[str, str]) -> "asyncpg.Connection[Any]":
        connection = await connect(self._where, settings)
        if self._work is Work.TOOL:
            return connection
        kind = "_shared" if self._work is Work.CONTROL else ""
        if not await connection.fetchval(f"SELECT pg_try_advisory_lock{kind}({CONTROL_LOCK})"):
            await connection.close()
            raise self._taken()
        return connection

    def _taken(self) -> StorageError:
        if self._work is Work.CONTROL:
            return StorageError(
                f"The database {self._where} is being filled or moved just now.",
                remedy="Start control once that has ended.",
            )
        return StorageError(
            f"A control works on {self._where}.",
            remedy="Stop it first, or give this one a database of its own in GPUPOOL_DATABASE_URL.",
        )

    def _too_long(self) -> StorageError:
        return StorageError(
            f"Another process has kept {self._where} locked for {self._busy_seconds:g} s.",
            remedy="See who with `SELECT * FROM pg_locks WHERE locktype = 'advisory'` in psql.",
        )

    async def forget_overwritten(self) -> None:
        """Nothing to do: autovacuum reuses the space, and no command would free it without halting the pool."""


async def connect(
    where: PostgresUrl, settings: dict[str, str], *, statement_seconds: float = STATEMENT_SECONDS
) -> "asyncpg.Connection[Any]":
    """Return a connection; StorageError that says what the server, or the way to it, refused."""
    try:
        return await asyncpg.connect(
            where.dsn,
            timeout=CONNECT_SECONDS,
            command_timeout=statement_seconds,
            server_settings={"application_name": "gpupool", "timezone": "UTC", **_KEEPALIVE, **settings},
        )
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
        raise refused_connection(str(where), error) from error


def _engine(connections: int, create: Callable[[], Awaitable[Any]]) -> AsyncEngine:
    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=create,
        poolclass=AsyncAdaptedQueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=POOL_SECONDS,
        # A server that was restarted has closed them all; asking costs a tenth of a millisecond.
        pool_pre_ping=True,
        hide_parameters=True,
    )
