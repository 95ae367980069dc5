"""Saving: database and keys into one file."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpupool.core.errors import NotFoundError
from gpupool.core.home import Home
from gpupool.store.backup.archive import ArchiveWriter, writing
from gpupool.store.backup.dumping import dump
from gpupool.store.open import Where, open_database

Told = Callable[[str, int], None]


def save(home: Home, where: Where, file: Path, told: Told) -> dict[str, Any]:
    """Write a backup and return what it holds; NotFoundError where there is no pool, StorageError as `open_database`."""
    if isinstance(where, Path) and not where.exists():
        raise NotFoundError(
            f"There is no pool in {home.root}.", remedy="Name its state folder with GPUPOOL_HOME."
        )
    rows: dict[str, int] = {}

    def counted(table: str, number: int) -> None:
        rows[table] = number
        told(table, number)

    with writing(file) as archive:
        # The keys first: a workload that is sealed meanwhile is so with a key that is there already.
        keys = _add_keys(home, archive)
        asyncio.run(_dump(where, archive, counted))
    return {
        "file": str(file),
        "database": str(where),
        "rows": sum(rows.values()),
        "tables": rows,
        "keys": keys,
        "bytes": file.stat().st_size,
    }


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
