"""The way into the store: bring the schema up to date in a short-lived process, then open it.

Migrations live in a process of their own, because what they load (alembic) would stay in control's memory for good.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, StorageError
from gpupool.core.sealing import Seal
from gpupool.fleet.ports.store import Store
from gpupool.store.database import Database
from gpupool.store.postgres_url import VARIABLE, PostgresUrl
from gpupool.store.schema import Schema, Standing, inspect, refused
from gpupool.store.sql_store import SqlStore
from gpupool.store.sqlite import BUSY_SECONDS, SqliteDatabase

MIGRATION_SECONDS: Final = 600.0
"""How long a migration may take before it is ended; it leaves the old schema then."""
_MAX_MESSAGE: Final = 4000
Where = Path | PostgresUrl
"""A database: an SQLite file, or one of a PostgreSQL server."""


async def run_migration(where: Where) -> None:
    """Bring a database to this version's schema; a file is made when there is none.

    Raises StorageError, with the migration's own words, when it cannot.
    """
    postgres = isinstance(where, PostgresUrl)
    # A command line can be read by everybody on the machine, an environment by its owner only.
    environment = os.environ | {VARIABLE: where.dsn} if isinstance(where, PostgresUrl) else None
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gpupool.store.migrate",
        *(["--postgres"] if postgres else ["--database", str(where)]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(MIGRATION_SECONDS):
            _, told = await process.communicate()
    except TimeoutError as error:
        raise StorageError(f"Migrating {where} took longer than {MIGRATION_SECONDS:g} s.") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise _failure(where, process.returncode, told.decode(errors="replace"))


def _failure(where: Where, status: int | None, told: str) -> StorageError:
    """Return the error that the migration printed: one line what happened, one line what to do."""
    lines = [line for line in told[-_MAX_MESSAGE:].splitlines() if line.strip()]
    if status == StorageError.exit_code and len(lines) >= 2:
        return StorageError(lines[-2], remedy=lines[-1])
    last = lines[-1] if lines else "it said nothing"
    return StorageError(f"Migrating {where} failed with status {status}: {last}")


async def open_store(
    where: Where, *, busy_seconds: float = BUSY_SECONDS, seal: Seal | None = None, control: bool = False
) -> Store:
    """Open a migrated database; a writer waits ``busy_seconds`` for another process's lock.

    ``seal``: seals the environment of workloads, and must open what is sealed already; left out, it is kept as it is.
    ``control``: keeps tools that need a database for themselves off it; a file is guarded by the lock of its folder.

    Raises StorageError, saying what to do, when it is missing, damaged, out of reach, of another schema, or sealed
    with another key.
    """
    database = await open_database(where, busy_seconds=busy_seconds, control=control)
    store = SqlStore(database, seal=seal)
    try:
        async with store.read() as view:
            await view.last_event_seq()
        if control:
            async with store.write():
                pass
        if seal is not None:
            # Before anything is served: with another key every list would fail, and new work be sealed with it.
            async with store.read() as view:
                await view.workloads()
            await store.seal_clear()
    except BaseException:
        await store.close()
        raise
    return store


async def open_database(
    where: Where, *, busy_seconds: float = BUSY_SECONDS, control: bool = False
) -> Database:
    """Return a database for `open_store`, or for whoever looks at its rows; its errors are the same."""
    schema, database = await _prepared(where, busy_seconds, control=control)
    if schema.standing is not Standing.CURRENT:
        raise refused(where if isinstance(where, Path) else str(where), schema)
    return database


async def schema_of(where: Where) -> Schema:
    """Return which schema a database has; StorageError where that cannot be told."""
    schema, _ = await _prepared(where, BUSY_SECONDS, control=False)
    return schema


async def _prepared(where: Where, busy_seconds: float, *, control: bool) -> tuple[Schema, Database]:
    if isinstance(where, Path):
        return await asyncio.to_thread(inspect, where), SqliteDatabase(where, busy_seconds=busy_seconds)
    try:
        from gpupool.store.postgres import PostgresDatabase, Work
        from gpupool.store.postgres_schema import inspect_postgres
    except ModuleNotFoundError as error:
        raise EnvironmentProblemError(
            f"{where} needs {error.name}, which is not installed.",
            remedy="Install it: pip install 'gpupool[fleet]'.",
        ) from error
    schema = await inspect_postgres(where)
    return schema, PostgresDatabase(
        where, busy_seconds=busy_seconds, work=Work.CONTROL if control else Work.TOOL
    )
