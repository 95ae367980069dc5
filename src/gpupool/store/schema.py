"""Which schema a database file has, told without loading anything heavy.

Both sides need it: the migration, to know whether there is work for it (alembic takes a second to load), and
control, which never loads alembic at all.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from gpupool.core.errors import StorageError

REVISIONS: Final = ("0001", "0002", "0003", "0004", "0005", "0006")
"""Every schema revision this version knows, oldest first."""
NEWEST: Final = REVISIONS[-1]


class Standing(StrEnum):
    """How a database file stands to this version."""

    EMPTY = "empty"
    """There is no file, or nothing in it."""
    OLDER = "older"
    CURRENT = "current"
    NEWER = "newer"
    """A later version made it."""
    FOREIGN = "foreign"
    """It holds tables, and they are not ours."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What a database file holds."""

    standing: Standing
    revision: str | None = None


def inspect(path: Path, known: tuple[str, ...] = REVISIONS) -> Schema:
    """Return the schema of the file at ``path``; StorageError when it cannot be read or is damaged."""
    if not path.exists() or path.stat().st_size == 0:
        return Schema(Standing.EMPTY)
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=10)
        ) as connection:
            return _standing(connection, known)
    except (sqlite3.Error, OSError) as error:
        raise damaged(path, str(error)) from error


def _standing(connection: sqlite3.Connection, known: tuple[str, ...]) -> Schema:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return Schema(Standing.EMPTY)
    if "alembic_version" not in tables:
        return Schema(Standing.FOREIGN)
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return standing(None if row is None else str(row[0]), known)


def standing(revision: str | None, known: tuple[str, ...] = REVISIONS) -> Schema:
    """Return the schema of a database that says it has ``revision``; None where it has no word of it."""
    if revision is None:
        return Schema(Standing.FOREIGN)
    if revision not in known:
        return Schema(Standing.NEWER, revision)
    return Schema(Standing.CURRENT if revision == known[-1] else Standing.OLDER, revision)


def check_pages(path: Path) -> None:
    """Read the whole file and raise StorageError when SQLite finds damage in it."""
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=10)
        ) as connection:
            found = [row[0] for row in connection.execute("PRAGMA quick_check(1)")]
    except (sqlite3.Error, OSError) as error:
        raise damaged(path, str(error)) from error
    if found != ["ok"]:
        raise damaged(path, "; ".join(found))


def damaged(path: Path, told: str) -> StorageError:
    """Return the error for a file that cannot be read as a database."""
    return StorageError(
        f"The database {path} cannot be read: {' '.join(told.split())}.",
        remedy=f"Restore the newest backup ({path.name}.backup-* in {path.parent}), or move the file away to start anew.",
    )


def refused(where: Path | str, schema: Schema) -> StorageError:
    """Return the error for a database (a file, or the name of a server's) that this version must not touch, or not yet."""
    if schema.standing is Standing.NEWER:
        return StorageError(
            f"The database {where} has schema {schema.revision}, made by a newer gpupool; this one knows {NEWEST}.",
            remedy="Install the newer gpupool again, or restore a backup that fits this one.",
        )
    if schema.standing is Standing.FOREIGN and isinstance(where, Path):
        return StorageError(
            f"The file {where} is a database, but not one of gpupool.",
            remedy="Give another data folder with GPUPOOL_HOME, or move the file away.",
        )
    if schema.standing is Standing.FOREIGN:
        return StorageError(
            f"The database {where} holds tables that are not gpupool's.",
            remedy="Give a database of its own, made with `createdb`, in GPUPOOL_DATABASE_URL.",
        )
    option = f"--database {where}" if isinstance(where, Path) else "--postgres"
    return StorageError(
        f"The database {where} is not ready: its schema is {schema.revision or 'missing'}, {NEWEST} is needed.",
        remedy=f"Bring it up to date: `python -m gpupool.store.migrate {option}`.",
    )
