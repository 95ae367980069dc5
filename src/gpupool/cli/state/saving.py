"""Saving: database, keys and whom to alert into one file."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpupool.core.errors import NotFoundError
from gpupool.core.files import read_json
from gpupool.core.home import MOVED, Home
from gpupool.store.backup.archive import ArchiveWriter, writing
from gpupool.store.backup.dumping import dump
from gpupool.store.open import Where, open_database
from gpupool.store.postgres_url import VARIABLE

Told = Callable[[str, int], None]


def save(home: Home, where: Where, file: Path, told: Told) -> dict[str, Any]:
    """Write a backup and return what it holds; NotFoundError where there is no pool, StorageError as `open_database`."""
    if isinstance(where, Path) and not where.exists():
        raise no_pool(home)
    rows: dict[str, int] = {}

    def counted(table: str, number: int) -> None:
        rows[table] = number
        told(table, number)

    with writing(file) as archive:
        # The keys first: a workload that is sealed meanwhile is so with a key that is there already.
        keys = _add_keys(home, archive)
        if home.alerts.is_file():
            archive.alerts(home.alerts.read_bytes())
        asyncio.run(_dump(where, archive, counted))
    return {
        "file": str(file),
        "database": str(where),
        "rows": sum(rows.values()),
        "tables": rows,
        "keys": keys,
        "bytes": file.stat().st_size,
    }


def no_pool(home: Home) -> NotFoundError:
    """Return the error for a state folder without a database file: it says where the state has gone, if it has."""
    moved = read_json(home.moved) or {}
    if moved.get("state") == MOVED:
        return NotFoundError(
            f"The state of the pool in {home.root} has moved to {moved.get('to')}, at {moved.get('at')}.",
            remedy=f"Set {VARIABLE} to it, with its password where it has one; there is nothing left to move.",
        )
    return NotFoundError(
        f"There is no pool in {home.root}.", remedy="Name its state folder with GPUPOOL_HOME."
    )


async def _dump(where: Where, archive: ArchiveWriter, told: Told) -> None:
    database = await open_database(where)
    try:
        await dump(database, archive, told)
    finally:
        await database.readers.dispose()
        await database.writers.dispose()


def _add_keys(home: Home, archive: ArchiveWriter) -> int:
    files = sorted(path for path in home.keys.glob("*") if path.is_file() and not path.name.startswith("."))
    for path in files:
        archive.key(path.name, path.read_bytes())
    return len(files)
