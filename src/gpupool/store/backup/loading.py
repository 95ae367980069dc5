"""Putting a backup into an empty database: the schema it was made with, its rows, then the steps to today's schema.

All of it is one transaction, so a restore that is broken off leaves an empty database.
"""

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, DateTime, MetaData, Table, func, select, text

from gpupool.core.errors import StorageError
from gpupool.core.files import sync_folder
from gpupool.store.backup.archive import Archive
from gpupool.store.faults import storage_error, translated
from gpupool.store.migrate import SCRIPTS, make_private, upgrading
from gpupool.store.migrate_postgres import TURN_SECONDS
from gpupool.store.postgres_url import PostgresUrl
from gpupool.store.schema import NEWEST, REVISIONS, Schema, Standing
from gpupool.store.tables import METADATA

_PAGE: Final = 500
Told = Callable[[str, int], None]


def load_file(archive: Archive, path: Path, told: Told = lambda *_: None) -> None:
    """Make an SQLite database at ``path``, which must be free, appear whole or not at all.

    Raises StorageError where the backup does not fit this version, or the file cannot be written.
    """
    _check_revision(archive)
    unfinished = path.with_name(f"{path.name}.restoring")
    try:
        _remove(unfinished)
        try:
            make_private(unfinished)
            with translated(), upgrading(unfinished) as connection, connection.begin():
                _fill(connection, archive, str(path), told)
            _fold_log(unfinished)
            unfinished.rename(path)
        finally:
            _remove(unfinished)
        sync_folder(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise storage_error(error) from error


def _remove(unfinished: Path) -> None:
    for leftover in unfinished.parent.glob(f"{unfinished.name}*"):
        leftover.unlink()


async def load_postgres(archive: Archive, where: PostgresUrl, told: Told = lambda *_: None) -> None:
    """Fill an empty PostgreSQL database; StorageError where it is not empty or cannot be used."""
    from gpupool.store.postgres import PostgresDatabase, Work
    from gpupool.store.postgres_schema import inspect_postgres

    _check_revision(archive)
    _check_empty(where, await inspect_postgres(where))
    database = PostgresDatabase(where, busy_seconds=TURN_SECONDS, work=Work.ALONE)
    try:
        with translated():
            async with database.writers.connect() as connection:
                await database.begin_writing(connection)
                # A control that starts, or another restore, may have been faster.
                _check_empty(where, await inspect_postgres(where))
                await connection.run_sync(_fill, archive, str(where), told)
                await connection.commit()
    finally:
        await database.readers.dispose()
        await database.writers.dispose()


def _check_empty(where: PostgresUrl, schema: Schema) -> None:
    if schema.standing is not Standing.EMPTY:
        raise StorageError(
            f"The database {where} is not empty. Nothing was changed.",
            remedy="Make a new one (`createdb NAME`) and name it in GPUPOOL_DATABASE_URL.",
        )


async def holds(where: PostgresUrl) -> dict[str, int]:
    """Return the number of rows by table; nothing where the database holds no pool of today's schema."""
    from gpupool.store.postgres import PostgresDatabase
    from gpupool.store.postgres_schema import inspect_postgres

    if (await inspect_postgres(where)).standing is not Standing.CURRENT:
        return {}
    database = PostgresDatabase(where, busy_seconds=TURN_SECONDS)
    try:
        with translated():
            async with database.readers.connect() as connection:
                return {
                    table.name: (
                        await connection.execute(select(func.count()).select_from(table))
                    ).scalar_one()
                    for table in METADATA.sorted_tables
                }
    finally:
        await database.readers.dispose()
        await database.writers.dispose()


def _check_revision(archive: Archive) -> None:
    if archive.revision not in REVISIONS:
        raise StorageError(
            f"{archive.path} was made by gpupool {archive.made_by}, which is newer than this one. Nothing was changed.",
            remedy=f"Install gpupool {archive.made_by} or later, then restore.",
        )


def _fill(connection: Connection, archive: Archive, where: str, told: Told) -> None:
    from gpupool.store.stepping import run_steps

    run_steps(connection, SCRIPTS, where, archive.revision)
    schema = MetaData()
    schema.reflect(connection)
    for table in schema.sorted_tables:
        if table.name in archive.rows and table.name in METADATA.tables:
            told(table.name, _insert(connection, table, archive))
    missing = archive.rows.keys() - (schema.tables.keys() & METADATA.tables.keys())
    if missing:
        raise StorageError(
            f"{archive.path} has tables that are not known here: {', '.join(sorted(missing))}."
        )
    if connection.dialect.name == "postgresql":
        connection.execute(
            text("SELECT setval(pg_get_serial_sequence('events', 'seq'), (SELECT max(seq) FROM events))")
        )
    if archive.revision != NEWEST:
        run_steps(connection, SCRIPTS, where)


def _insert(connection: Connection, table: Table, archive: Archive) -> int:
    moments = {column.name for column in table.c if isinstance(column.type, DateTime)}
    columns = {column.name for column in table.c}
    aware = connection.dialect.name == "postgresql"
    rows = archive.table(table.name)
    number = 0
    try:
        while page := [_typed(row, columns, moments, aware=aware) for row in islice(rows, _PAGE)]:
            connection.execute(table.insert(), page)
            number += len(page)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise StorageError(
            f"{archive.path} cannot be restored: a row of {table.name} holds what does not fit. Nothing was changed."
        ) from error
    if number != archive.rows[table.name]:
        raise StorageError(
            f"{archive.path} holds {number} rows of {table.name}, not {archive.rows[table.name]}."
        )
    return number


def _typed(row: dict[str, Any], columns: set[str], moments: set[str], *, aware: bool) -> dict[str, Any]:
    """Return a row with its moments as what the database's driver takes; ValueError where it has other columns."""
    if not row.keys() <= columns:
        # They would be left out without a word.
        raise ValueError(f"columns that are not known: {row.keys() - columns}")
    for name in moments & row.keys():
        if row[name] is not None:
            moment = datetime.fromisoformat(row[name]).astimezone(UTC)
            row[name] = moment if aware else moment.replace(tzinfo=None)
    if not aware:
        return row
    # SQLite keeps a NUL in a text (an earlier version let them in); PostgreSQL takes none.
    return {
        name: value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value
        for name, value in row.items()
    }


def _fold_log(path: Path) -> None:
    """Put everything into the file itself, so that it can be renamed."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    finally:
        connection.close()
