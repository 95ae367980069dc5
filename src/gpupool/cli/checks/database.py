"""The database: readable, whole, of this version's schema, with a log that is not running away."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpupool.cli.checks.finding import Finding, failed, mib, passed, warned
from gpupool.core.errors import GpupoolError, StorageError
from gpupool.core.files import read_json
from gpupool.core.home import Home

if TYPE_CHECKING:
    from gpupool.store.schema import Schema

WARN_WAL: Final = 256 * 2**20
"""The store cuts its log to 64 MiB after a checkpoint; one several times as long is never checkpointed."""


def check_database(home: Home, *, in_use: bool, url: str | None = None) -> list[Finding]:
    """Tell which schema the database has and whether its pages are sound. ``in_use``: control runs from here.

    ``url``: of a PostgreSQL database, where that holds the state.
    """
    from gpupool.store.looking import untouched

    if url:
        return [_postgres(url)]
    if not home.database.exists() and (moved := read_json(home.moved)):
        return [
            warned(
                "database",
                "moved",
                f"The state of this pool has moved to {moved.get('to')}.",
                "Set GPUPOOL_DATABASE_URL to it, here and where control starts.",
            )
        ]
    if not home.database.exists():
        return [passed("database", "none yet; the first start makes it")]
    try:
        with untouched(home.database, in_use=in_use) as path:
            findings = [_schema(path, home.database), _pages(path, home.database)]
    except StorageError as error:
        findings = [failed("database", str(home.database), error.message, error.remedy)]
    return [*findings, check_wal(home.database)]


def _postgres(url: str) -> Finding:
    import asyncio

    from gpupool.store.open import schema_of
    from gpupool.store.postgres_url import parse_postgres_url

    name = "database"
    try:
        where = parse_postgres_url(url)
        schema = asyncio.run(schema_of(where))
    except GpupoolError as error:
        return failed(name, "PostgreSQL", error.message, error.remedy)
    return _judged(name, str(where), schema)


def check_wal(database: Path) -> Finding:
    """Tell how long the write-ahead log is."""
    name, wal = "database log", database.with_name(f"{database.name}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size > WARN_WAL:
        return warned(
            name,
            mib(size),
            "It is not folded back into the database, so some reader has held on to it for long.",
            "Stop the pool and start it again.",
        )
    return passed(name, mib(size))


def _schema(path: Path, real: Path) -> Finding:
    from gpupool.store.schema import inspect

    name = "database schema"
    try:
        schema = inspect(path)
    except StorageError as error:
        return _damaged(name, error, path, real)
    return _judged(name, real, schema)


def _judged(name: str, where: Path | str, schema: "Schema") -> Finding:
    from gpupool.store.schema import NEWEST, Standing, refused

    at = "" if isinstance(where, Path) else f"{where}, "
    if schema.standing is Standing.CURRENT:
        return passed(name, f"{at}revision {schema.revision}")
    if schema.standing is Standing.EMPTY:
        return passed(name, f"{at}empty; the next start makes it")
    if schema.standing is Standing.OLDER:
        return warned(
            name,
            f"{at}revision {schema.revision}, this version has {NEWEST}",
            "It is older than this version.",
            "The next start of control brings it up to date; a file gets a backup beside it first.",
        )
    refusal = refused(where, schema)
    return failed(
        name, f"{at}{schema.standing.value}, revision {schema.revision}", refusal.message, refusal.remedy
    )


def _pages(path: Path, real: Path) -> Finding:
    from gpupool.store.schema import check_pages

    name = "database pages"
    try:
        check_pages(path)
    except StorageError as error:
        return _damaged(name, error, path, real)
    return passed(name, f"sound, {mib(real.stat().st_size)}")


def _damaged(name: str, error: StorageError, path: Path, real: Path) -> Finding:
    """Return the finding of a damaged file, named as the user knows it and not by the copy that was read."""
    told, remedy = (
        text.replace(str(path), str(real)).replace(str(path.parent), str(real.parent))
        for text in (error.message, error.remedy)
    )
    return failed(name, "damaged", told, remedy)
