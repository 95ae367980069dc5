"""Bringing a PostgreSQL database to this version's schema.

The steps run in one transaction, as a writer among the others: no change of control's slips in between, and where a
step fails nothing of it stays. There is no copy to go back to as there is beside an SQLite file: `gpupool backup`, or
the server's own means, make one.
"""

from pathlib import Path

from gpupool.store.faults import translated
from gpupool.store.postgres import PostgresDatabase
from gpupool.store.postgres_schema import inspect_postgres
from gpupool.store.postgres_url import PostgresUrl
from gpupool.store.schema import REVISIONS, Schema, Standing, refused

TURN_SECONDS = 120.0
"""How long a migration waits for the writers before it; a second migration waits for the first."""


async def migrate_postgres(where: PostgresUrl, scripts: Path, known: tuple[str, ...] = REVISIONS) -> None:
    """Bring a database to the last of the ``known`` revisions.

    Raises StorageError when it is newer, foreign or out of reach; it is then unchanged.
    """
    if _checked(where, await inspect_postgres(where, known)).standing is Standing.CURRENT:
        return
    from gpupool.store.stepping import run_steps

    database = PostgresDatabase(where, busy_seconds=TURN_SECONDS)
    try:
        with translated():
            async with database.writers.connect() as connection:
                await database.begin_writing(connection)
                # Another migration may have been faster.
                if _checked(where, await inspect_postgres(where, known)).standing is Standing.CURRENT:
                    return
                await connection.run_sync(run_steps, scripts, str(where))
                await connection.commit()
    finally:
        await database.readers.dispose()
        await database.writers.dispose()


def _checked(where: PostgresUrl, schema: Schema) -> Schema:
    if schema.standing in {Standing.NEWER, Standing.FOREIGN}:
        raise refused(str(where), schema)
    return schema
