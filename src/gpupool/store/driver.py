"""One thread hop a statement.

SQLite blocks, so each connection works in a thread of its own (aiosqlite). The stock cursor crosses to that thread
four times a statement: open, execute, fetch, close. Results here are small lists that are wanted whole, so one
crossing does all four; and a reading transaction begins on the way to its first statement. That makes small reads
several times faster.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiosqlite


class WholeCursor:
    """What SQLAlchemy needs of a cursor, with the rows fetched already when `execute` returns."""

    description: Any = None
    rowcount: int = -1
    lastrowid: int | None = None
    arraysize: int = 1

    def __init__(self, connection: "HopConnection") -> None:
        self._connection = connection
        self._rows: Sequence[Any] = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Self:
        """Run one statement and fetch its rows."""
        await self._connection.in_thread(self._run, statement, parameters)
        return self

    async def executemany(self, statement: str, many: Sequence[Sequence[Any]]) -> Self:
        """Run one statement for each set of parameters."""
        await self._connection.in_thread(self._run_many, statement, many)
        return self

    async def fetchall(self) -> Sequence[Any]:
        """Return the rows of the last statement."""
        return self._rows

    async def close(self) -> None:
        """Forget the rows; inside SQLite everything is closed already."""
        self._rows = ()

    def _run(self, raw: sqlite3.Connection, statement: str, parameters: Sequence[Any]) -> None:
        cursor = raw.execute(statement, parameters)
        try:
            self._rows = cursor.fetchall()
            self.description, self.rowcount = cursor.description, cursor.rowcount
            self.lastrowid = cursor.lastrowid
        finally:
            cursor.close()

    def _run_many(self, raw: sqlite3.Connection, statement: str, many: Sequence[Sequence[Any]]) -> None:
        cursor = raw.executemany(statement, many)
        self.rowcount = cursor.rowcount
        cursor.close()


class HopConnection(aiosqlite.Connection):
    """An aiosqlite connection with whole cursors; ``begin`` is run before a statement outside a transaction."""

    def __init__(self, path: Path, pragmas: Sequence[str], begin: str | None) -> None:
        super().__init__(lambda: _connect(path, pragmas), iter_chunk_size=64)
        self._begin = begin
        # As SQLAlchemy sets it for connections that it makes itself: a forgotten one must not keep the process.
        self._thread.daemon = True

    def cursor(self) -> WholeCursor:  # type: ignore[override]
        """Return a cursor, which costs nothing."""
        return WholeCursor(self)

    async def in_thread(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run ``function(raw connection, *arguments)`` in this connection's thread."""
        run: Callable[..., Awaitable[None]] = self._execute
        await run(self._in_transaction, function, *arguments)

    def _in_transaction(self, function: Callable[..., None], *arguments: Any) -> None:
        raw = self._conn
        if self._begin is not None and not raw.in_transaction:
            raw.execute(self._begin)
        function(raw, *arguments)

    async def rollback(self) -> None:
        """Roll back; nothing to do, and no hop, where no transaction is open."""
        if self.in_transaction:
            await super().rollback()


def _connect(path: Path, pragmas: Sequence[str]) -> sqlite3.Connection:
    """Open an existing file; it is never made here, since an empty one would look like a lost database."""
    raw = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
    try:
        for pragma in pragmas:
            raw.execute(pragma).close()
    except BaseException:
        raw.close()
        raise
    return raw
