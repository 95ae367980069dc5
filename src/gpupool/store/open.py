"""The way into the store: bring the schema up to date in a short-lived process, then open it.

Migrations live in a process of their own, because what they load (alembic) would stay in control's memory for good.
"""

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

from gpupool.core.errors import StorageError
from gpupool.core.sealing import Seal
from gpupool.fleet.ports.store import Store
from gpupool.store.schema import Standing, inspect, refused
from gpupool.store.sql_store import BUSY_SECONDS, SqlStore

MIGRATION_SECONDS: Final = 600.0
"""How long a migration may take before it is ended; it leaves the old schema then."""
_MAX_MESSAGE: Final = 4000


async def run_migration(path: Path) -> None:
    """Bring the database at ``path`` to this version's schema, making it when there is none.

    Raises StorageError, with the migration's own words, when it cannot.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gpupool.store.migrate",
        "--database",
        str(path),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(MIGRATION_SECONDS):
            _, told = await process.communicate()
    except TimeoutError as error:
        raise StorageError(f"Migrating {path} took longer than {MIGRATION_SECONDS:g} s.") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise _failure(path, process.returncode, told.decode(errors="replace"))


def _failure(path: Path, status: int | None, told: str) -> StorageError:
    """Return the error that the migration printed: one line what happened, one line what to do."""
    lines = [line for line in told[-_MAX_MESSAGE:].splitlines() if line.strip()]
    if status == StorageError.exit_code and len(lines) >= 2:
        return StorageError(lines[-2], remedy=lines[-1])
    last = lines[-1] if lines else "it said nothing"
    return StorageError(f"Migrating {path} failed with status {status}: {last}")


def _forget_deleted(path: Path) -> None:
    """Write the database anew, without what was overwritten in it."""
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise StorageError(f"The database {path} cannot be written anew: {error}.") from error


async def open_store(path: Path, *, busy_seconds: float = BUSY_SECONDS, seal: Seal | None = None) -> Store:
    """Open the migrated database at ``path``; a writer waits ``busy_seconds`` for another process's lock.

    ``seal``: seals the environment of workloads; left out, it is kept as it is.

    Raises StorageError, saying what to do, when it is missing, damaged, or of another schema.
    """
    schema = await asyncio.to_thread(inspect, path)
    if schema.standing is not Standing.CURRENT:
        raise refused(path, schema)
    store = SqlStore(path, busy_seconds=busy_seconds, seal=seal)
    try:
        async with store.read() as view:
            await view.last_event_seq()
        if seal is not None and await store.seal_clear():
            await asyncio.to_thread(_forget_deleted, path)
    except BaseException:
        await store.close()
        raise
    return store
