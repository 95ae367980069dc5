"""Where a market keeps its books: one SQLite file with a document a record, and a ledger that only grows.

A market is small (thousands of records) and read all the time, so it lives in memory and every change is written through
in one transaction before it counts. Writing happens on a thread of its own, so that a slow disk holds nobody up but
whoever waits for that change.
"""

import asyncio
import os
import sqlite3
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from gpupool.core.errors import StorageError
from gpupool.core.files import ensure_private_dir
from gpupool.market.records import Chute, Earning, Gpu, Image, Instance, Job, Launch, Use

KINDS: Final = {
    "image": Image,
    "chute": Chute,
    "gpu": Gpu,
    "launch": Launch,
    "instance": Instance,
    "job": Job,
    "use": Use,
}
Record = Image | Chute | Gpu | Launch | Instance | Job | Use
_NAMES: Final = {kind: name for name, kind in KINDS.items()}
_READERS: Final[dict[str, TypeAdapter[Any]]] = {name: TypeAdapter(kind) for name, kind in KINDS.items()}
_WRITER: Final[TypeAdapter[Any]] = TypeAdapter(dict[str, Any])
VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE records (kind TEXT NOT NULL, id TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
CREATE TABLE ledger (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, hotkey TEXT NOT NULL,
    chute_id TEXT NOT NULL, instance_id TEXT NOT NULL, server_id TEXT NOT NULL, short_ref TEXT NOT NULL,
    gpus INTEGER NOT NULL, seconds REAL NOT NULL, units REAL NOT NULL, usd REAL NOT NULL
);
CREATE INDEX ledger_at ON ledger (at);
"""
_COLUMNS: Final = tuple(Earning.__dataclass_fields__)


class Books:
    """The file. One process at a time opens it; the lock on the state folder sees to that."""

    def __init__(self, path: Path) -> None:
        self._path = path
        ensure_private_dir(path.parent)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="market-books")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> list[Record]:
        """Open or make the file and return everything in it but the ledger; StorageError where that cannot be."""
        records: list[Record] = await self._do(self._open)
        return records

    async def write(
        self, kept: Iterable[Record], dropped: Iterable[Record], earned: Sequence[Earning]
    ) -> None:
        """Keep one change whole; StorageError where it was not kept."""
        rows = [(_NAMES[type(record)], record.id, _body(record)) for record in kept]
        gone = [(_NAMES[type(record)], record.id) for record in dropped]
        lines = [tuple(getattr(line, column) for column in _COLUMNS) for line in earned]
        await self._do(self._write, rows, gone, lines)

    async def earnings(self, since: float, until: float) -> list[Earning]:
        """Return the ledger's lines of a time, oldest first."""
        lines: list[Earning] = await self._do(self._earnings, since, until)
        return lines

    async def close(self) -> None:
        """Close the file."""
        await self._do(self._close)
        self._thread.shutdown()

    async def _do(self, work: Any, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work, *arguments)
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"The market's books {self._path} cannot be used: {error}.",
                remedy="Make room on the disk, or restore the file from a backup.",
            ) from error

    def _open(self) -> list[Record]:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = self._connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={VERSION}; COMMIT;")
        elif version != VERSION:
            raise StorageError(
                f"The market's books {self._path} are of version {version}, this gpupool knows {VERSION}.",
                remedy="Use the gpupool that wrote them, or a newer one.",
            )
        rows = connection.execute("SELECT kind, id, body FROM records").fetchall()
        return [self._read(kind, key, body) for kind, key, body in rows]

    def _read(self, kind: str, key: str, body: str) -> Record:
        try:
            record: Record = _READERS[kind].validate_json(body)
        except (KeyError, ValidationError) as error:
            raise StorageError(
                f"The {kind} {key} in the market's books {self._path} cannot be read.",
                remedy="Restore the file from a backup.",
            ) from error
        return record

    def _write(self, rows: list[Any], gone: list[Any], lines: list[Any]) -> None:
        connection = self._opened()
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany("DELETE FROM records WHERE kind = ? AND id = ?", gone)
            connection.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", rows)
            marks = ", ".join("?" * len(_COLUMNS))
            connection.executemany(f"INSERT INTO ledger ({', '.join(_COLUMNS)}) VALUES ({marks})", lines)  # noqa: S608
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _earnings(self, since: float, until: float) -> list[Earning]:
        query = f"SELECT {', '.join(_COLUMNS)} FROM ledger WHERE at >= ? AND at < ? ORDER BY seq"  # noqa: S608
        rows = self._opened().execute(query, (since, until)).fetchall()
        return [Earning(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StorageError("The market's books are closed.", remedy="Start the market again.")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _body(record: Record) -> str:
    return _WRITER.dump_json(asdict(record)).decode()
