"""The stores that must pass the contract suite, and a child process that writes to one.

A factory stands for one database: every ``open`` is a store of its own on the same data, as two processes have.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fleet_samples import new_database
from gpupool.fleet.ports.store import Store
from gpupool.store.open import open_store
from postgres_server import migrated_database

SOURCE = Path(__file__).resolve().parents[1] / "src"


class StoreFactory(Protocol):
    """One empty, migrated database."""

    async def open(self) -> Store:
        """Return a further store on the same database."""
        ...

    def opening_code(self) -> str:
        """Return a Python expression that opens a store in another process."""
        ...


class SqliteFactory:
    """A SQLite file of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = new_database(folder)

    async def open(self) -> Store:
        """Return a further store on the same file."""
        return await open_store(self.path)

    def opening_code(self) -> str:
        """Return a Python expression that opens the file in another process."""
        return f"await open_store(pathlib.Path({str(self.path)!r}))"


class PostgresFactory:
    """A database of its own on a real PostgreSQL server."""

    def __init__(self, _: Path) -> None:
        self.url = migrated_database()

    async def open(self) -> Store:
        """Return a further store on the same database."""
        return await open_store(self.url)

    def opening_code(self) -> str:
        """Return a Python expression that opens the database in another process."""
        return f"await open_store(parse_postgres_url({self.url.dsn!r}))"


FACTORIES: dict[str, type[SqliteFactory] | type[PostgresFactory]] = {
    "sqlite": SqliteFactory,
    "postgres": PostgresFactory,
}

_CHILD = """
import asyncio, pathlib, sys
from datetime import UTC, datetime
from gpupool.fleet.events import Event
from gpupool.store.open import open_store
from gpupool.store.postgres_url import parse_postgres_url

def event(kind, subject):
    return Event(kind=kind, subject=subject, at=datetime.now(UTC))

async def main():
    store = {opening}
    print("open", flush=True)
{body}
    await store.close()

asyncio.run(main())
"""


async def start_writer(factory: StoreFactory, body: Sequence[str]) -> asyncio.subprocess.Process:
    """Start a process that opens the store, prints ``open`` and then runs ``body`` (lines; ``store`` is there)."""
    lines = "\n".join(f"    {line}" for line in body)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CHILD.format(opening=factory.opening_code(), body=lines),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
