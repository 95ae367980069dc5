"""Restoring: a checked backup into a state folder and a database that hold nothing it could overwrite."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpupool.core.errors import ConflictError
from gpupool.core.files import write_private
from gpupool.core.home import Home
from gpupool.store.backup.archive import Archive, reading
from gpupool.store.backup.loading import load_file, load_postgres
from gpupool.store.open import Where

Told = Callable[[str, int], None]


def bring_back(home: Home, where: Where, file: Path, told: Told) -> dict[str, Any]:
    """Restore a backup and return what came back.

    Raises ConflictError where a pool, another key or other alerts are there already, StorageError where backup or
    database is unfit; nothing is changed then.
    """
    with reading(file) as archive:
        files = {home.keys / name: content for name, content in archive.keys.items()}
        if archive.alerts is not None:
            files[home.alerts] = archive.alerts
        _refuse_others(files)
        # Keys first: a database without them could not be read, should the power fail in between.
        with _written(files):
            load(archive, where, told)
        return {
            "file": str(file),
            "database": str(where),
            "made_at": archive.made_at,
            "made_by": archive.made_by,
            "rows": sum(archive.rows.values()),
            "keys": len(archive.keys),
        }


def load(archive: Archive, where: Where, told: Told) -> None:
    """Put the tables of a backup into a database that holds none."""
    if not isinstance(where, Path):
        asyncio.run(load_postgres(archive, where, told))
        return
    if where.exists():
        raise ConflictError(
            f"There is a pool in {where.parent.parent} already. Nothing was changed.",
            remedy="Restore into another state folder (GPUPOOL_HOME), or move this database away.",
        )
    for log in (where.with_name(f"{where.name}-wal"), where.with_name(f"{where.name}-journal")):
        if log.exists():
            raise ConflictError(
                f"{log} belongs to a database that was moved away without it. Nothing was changed.",
                remedy="Move it to where that database is now, beside it and under its name: it holds its last changes.",
            )
    load_file(archive, where, told)


def _refuse_others(files: Mapping[Path, bytes]) -> None:
    for path, content in files.items():
        if path.exists() and path.read_bytes() != content:
            raise ConflictError(
                f"{path} is another than the backup's. Nothing was changed.",
                remedy="Restore into another state folder (GPUPOOL_HOME), or move this file away.",
            )


@contextmanager
def _written(files: Mapping[Path, bytes]) -> Iterator[None]:
    """Write the files that are missing, and take them back where the block fails."""
    new = [path for path in files if not path.exists()]
    try:
        for path in new:
            write_private(path, files[path])
        yield
    except BaseException:
        for path in new:
            path.unlink(missing_ok=True)
        raise
