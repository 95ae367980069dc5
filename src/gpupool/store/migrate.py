"""``python -m gpupool.store.migrate --database PATH | --postgres``: bring a database to this version's schema, and end.

One migration at a time (a lock file beside the database), all steps in one transaction, and a backup copy before an
existing database is changed. A newer, foreign or damaged file is refused and left as it is. For PostgreSQL see
`store.migrate_postgres`; its URL comes from the environment, since everybody can read a command line.
"""

import argparse
import asyncio
import fcntl
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError, StorageError
from gpupool.core.files import ensure_private_dir
from gpupool.store.schema import REVISIONS, Standing, check_pages, inspect, refused

if TYPE_CHECKING:
    from sqlalchemy import Connection

SCRIPTS: Final = Path(__file__).parent / "migrations"


def migrate(path: Path, scripts: Path = SCRIPTS, known: tuple[str, ...] = REVISIONS) -> None:
    """Bring the database at ``path`` to the last of the ``known`` revisions with the steps in ``scripts``.

    Raises StorageError when the file is newer, foreign, damaged or cannot be written; it is then unchanged.
    """
    if not path.parent.exists():
        ensure_private_dir(path.parent)
    with _alone(path):
        schema = inspect(path, known)
        if schema.standing in {Standing.NEWER, Standing.FOREIGN}:
            raise refused(path, schema)
        if schema.standing is not Standing.EMPTY:
            check_pages(path)
        if schema.standing is Standing.CURRENT:
            return
        if schema.standing is Standing.OLDER:
            back_up(path, schema.revision or "")
        else:
            make_private(path)
        _upgrade(path, scripts)


def back_up(path: Path, revision: str) -> Path:
    """Copy the database, with what is still in its log, beside itself (mode 0600) and return the copy's path."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    copy = path.with_name(f"{path.name}.backup-{revision}-{stamp}")
    make_private(copy)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def make_private(path: Path) -> None:
    """Make the file if need be, readable by its owner only."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    os.chmod(path, 0o600)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the migration lock of this database; a second migration waits here."""
    descriptor = os.open(path.with_name(f"{path.name}.migration-lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def upgrading(path: Path) -> "Iterator[Connection]":
    """Open an SQLite file for `store.stepping`."""
    # Loading this takes a while, which a database that is up to date need not pay.
    from sqlalchemy import create_engine, event
    from sqlalchemy.engine import URL

    engine = create_engine(
        URL.create("sqlite", database=str(path)), connect_args={"isolation_level": None, "timeout": 30}
    )
    event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA journal_mode=WAL"))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _upgrade(path: Path, scripts: Path) -> None:
    from gpupool.store.faults import translated
    from gpupool.store.stepping import run_steps

    with translated(), upgrading(path) as connection:
        run_steps(connection, scripts, str(path))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status is 0, or 3 with two lines on standard error: what happened, what to do."""
    parser = argparse.ArgumentParser(prog="gpupool.store.migrate", description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--database", type=Path, help="an SQLite file; made when there is none")
    which.add_argument("--postgres", action="store_true", help="the database at GPUPOOL_DATABASE_URL")
    path: Path | None = parser.parse_args(arguments).database
    try:
        if path is None:
            _migrate_postgres()
        else:
            migrate(path.absolute())
    except (EnvironmentProblemError, InvalidInputError) as error:
        return _told(error)
    except (OSError, sqlite3.Error) as error:
        return _told(StorageError(f"The database {path} cannot be migrated: {error}."))
    return 0


def _migrate_postgres() -> None:
    from gpupool.store.migrate_postgres import migrate_postgres
    from gpupool.store.postgres_url import VARIABLE, parse_postgres_url

    asyncio.run(migrate_postgres(parse_postgres_url(os.environ.get(VARIABLE, "")), SCRIPTS))


def _told(error: EnvironmentProblemError | InvalidInputError) -> int:
    sys.stderr.write(f"{error.message}\n{error.remedy}\n")
    return StorageError.exit_code


if __name__ == "__main__":
    sys.exit(main())
