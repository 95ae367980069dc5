"""Moving: from the SQLite file to PostgreSQL, through a backup that is gone afterwards."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpupool.cli.state.restoring import load
from gpupool.cli.state.saving import save
from gpupool.core.errors import InvalidInputError
from gpupool.core.files import read_json, write_private_json
from gpupool.core.home import MOVED, Home
from gpupool.store.backup.archive import reading
from gpupool.store.backup.loading import holds
from gpupool.store.open import Where
from gpupool.store.postgres_url import VARIABLE


def move_to_postgres(home: Home, where: Where, told: Callable[[str, int], None]) -> dict[str, Any]:
    """Move the state and return where it is; InvalidInputError where no PostgreSQL database is named.

    Broken off at any moment, either the file still is the pool's state, or the database is and the move can be ended
    by running it again.
    """
    if isinstance(where, Path):
        raise InvalidInputError(
            f"{VARIABLE} names no database to move to.",
            remedy=f"Make one (`createdb gpupool`), then: {VARIABLE}=postgresql://USER@HOST/gpupool gpupool database move",
        )
    _forget_broken_off(home)
    with tempfile.TemporaryDirectory(prefix=".move-", dir=home.data) as folder:
        copy = Path(folder) / "pool.zip"
        save(home, home.database, copy, lambda *_: None)
        with reading(copy) as archive:
            if not (_begun(home, where) and asyncio.run(holds(where)) == archive.rows):
                write_private_json(home.moved, {"state": "begun", "to": str(where)})
                load(archive, where, told)
            rows = sum(archive.rows.values())
    moment = datetime.now(UTC)
    write_private_json(home.moved, {"state": MOVED, "to": str(where), "at": moment.isoformat()})
    kept = home.database.with_name(f"pool.db.moved-{moment:%Y%m%dT%H%M%SZ}")
    home.database.rename(kept)
    return {"to": str(where), "rows": rows, "kept": str(kept)}


def _begun(home: Home, where: Where) -> bool:
    """Tell whether an earlier move to this database was broken off, be it just before the file was put aside."""
    noted = read_json(home.moved) or {}
    return noted.get("state") in {"begun", MOVED} and noted.get("to") == str(where)


def _forget_broken_off(home: Home) -> None:
    """Remove the copies, with the pool's keys in them, of moves that were killed."""
    for folder in home.data.glob(".move-*"):
        shutil.rmtree(folder, ignore_errors=True)
