"""Which schema a PostgreSQL database has; what `store.schema` is for SQLite files."""

import asyncpg

from gpupool.store.faults import refused_connection
from gpupool.store.postgres import connect
from gpupool.store.postgres_url import PostgresUrl
from gpupool.store.schema import REVISIONS, Schema, Standing, standing

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"


async def inspect_postgres(where: PostgresUrl, known: tuple[str, ...] = REVISIONS) -> Schema:
    """Return the schema of the database; StorageError where it cannot be reached or read."""
    connection = await connect(where, {})
    try:
        tables = {row[0] for row in await connection.fetch(_TABLES)}
        if not tables:
            return Schema(Standing.EMPTY)
        if "alembic_version" not in tables:
            return Schema(Standing.FOREIGN)
        return standing(await connection.fetchval("SELECT version_num FROM alembic_version"), known)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise refused_connection(str(where), error) from error
    finally:
        await connection.close()
