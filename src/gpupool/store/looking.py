"""Looking at a database without changing a byte of it, for people who want to know what is wrong.

SQLite writes even when one only reads: whoever closes a database last folds its log back into it. So a database
that nobody has open is read as a copy; one that control has open can be read where it is, since control closes last.
"""

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from gpupool.core.errors import StorageError
from gpupool.core.files import ensure_private_dir
from gpupool.store.schema import damaged

MOST_COPIED: Final = 4 * 2**30


@contextmanager
def untouched(path: Path, *, in_use: bool) -> Iterator[Path]:
    """Yield a path under which the database at ``path`` can be read: its own when ``in_use``, else that of a copy.

    Raises StorageError when it cannot be read, or is too large to be copied (4 GiB, or more than half of what is free
    in the temporary folder).
    """
    if in_use:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="gpupool-look-") as folder:
        ensure_private_dir(Path(folder))
        yield _copy(path, Path(folder))


def row_counts(path: Path) -> dict[str, int]:
    """Return the number of rows by table, without any content; StorageError when it cannot be read."""
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=10)
        ) as connection:
            connection.execute("PRAGMA query_only=ON")
            names = [
                row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            return {name: _count(connection, name) for name in sorted(names)}
    except (sqlite3.Error, OSError) as error:
        raise damaged(path, str(error)) from error


def environments(path: Path) -> list[dict[str, str]]:
    """Return the environment of every workload that ever was, as it is kept; StorageError when it cannot be read."""
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=10)
        ) as connection:
            connection.execute("PRAGMA query_only=ON")
            specs = [json.loads(row[0]) for row in connection.execute("SELECT spec FROM workloads")]
    except (sqlite3.Error, OSError, ValueError) as error:
        raise damaged(path, str(error)) from error
    return [spec.get("env") or {} for spec in specs if isinstance(spec, dict)]


def _count(connection: sqlite3.Connection, name: str) -> int:
    from sqlalchemy import func, select, table

    # A table's name cannot be a parameter, so it is left to SQLAlchemy to quote it.
    (count,) = connection.execute(str(select(func.count()).select_from(table(name)))).fetchone()
    return int(count)


def _copy(path: Path, folder: Path) -> Path:
    try:
        files = [one for one in (path, path.with_name(f"{path.name}-wal")) if one.exists()]
        size, free = sum(one.stat().st_size for one in files), shutil.disk_usage(folder).free
        if size > min(MOST_COPIED, free // 2):
            raise StorageError(
                f"The database {path} has {size} bytes, too many to look at a copy in {folder.parent}.",
                remedy="Start the pool, which checks it anyway, or give a larger temporary folder with TMPDIR.",
            )
        for one in files:
            shutil.copyfile(one, folder / one.name)
            os.chmod(folder / one.name, 0o600)
    except OSError as error:
        raise StorageError(f"The database {path} cannot be read: {error.strerror}.") from error
    return folder / path.name
