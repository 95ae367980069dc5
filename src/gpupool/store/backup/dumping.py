"""Reading every row out of a database, from one snapshot, while others go on writing to it."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Select, String, Table, column, select, table, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from gpupool.core.errors import StorageError
from gpupool.store.backup.archive import ArchiveWriter
from gpupool.store.database import Database
from gpupool.store.faults import translated
from gpupool.store.schema import NEWEST
from gpupool.store.tables import METADATA

_PAGE: Final = 500
_VERSION: Final = table("alembic_version", column("version_num", String)).c.version_num


async def dump(
    database: Database, archive: ArchiveWriter, told: Callable[[str, int], None] = lambda *_: None
) -> None:
    """Write all tables of a database with the newest schema, and the manifest.

    ``told`` is called with each table and its number of rows. Raises StorageError where the database cannot be read,
    or has been brought to another schema by now.
    """
    with translated():
        connection = await database.readers.connect()
    try:
        revision = await _revision(connection)
        for table in METADATA.sorted_tables:
            told(table.name, await archive.table(table.name, _rows(connection, table)))
    finally:
        with translated():
            await connection.close()
    archive.finish(revision)


async def _revision(connection: AsyncConnection) -> str:
    """Return the schema in the snapshot that the rows come from: a later gpupool may have started meanwhile."""
    with translated():
        revision = (await connection.execute(select(_VERSION))).scalar_one_or_none()
    if revision != NEWEST:
        raise StorageError(
            f"The schema of the database has become {revision} meanwhile; this gpupool knows {NEWEST}.",
            remedy="Make the backup with the gpupool that the pool runs.",
        )
    return str(revision)


async def _rows(connection: AsyncConnection, table: Table) -> AsyncIterator[dict[str, Any]]:
    """Yield rows in the order of their key, a page at a time: all at once would fill the memory."""
    key = list(table.primary_key.c)
    names = [column.name for column in table.c]
    ordered: Select[*tuple[Any, ...]] = select(table).order_by(*key).limit(_PAGE)
    page = ordered
    while True:
        # Here and not around the whole: trouble with the file is not the database's.
        with translated():
            rows = (await connection.execute(page)).all()
        for row in rows:
            yield {name: _plain(value) for name, value in zip(names, row, strict=True)}
        if len(rows) < _PAGE:
            return
        last = tuple(rows[-1][names.index(column.name)] for column in key)
        page = ordered.where(tuple_(*key) > tuple_(*last))


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
