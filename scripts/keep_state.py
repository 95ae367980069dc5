"""Keep the state folder of a schema revision in `tests/data`: that of the revision before, one step further.

    .venv/bin/python scripts/keep_state.py 0005

Run once when a revision is added; `tests/chaos/test_older_data.py` takes every folder up.
"""

import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from gpupool.store.migrate import migrate
from gpupool.store.schema import REVISIONS

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"


def keep(revision: str) -> Path:
    """Write the folder of ``revision``, which must be the newest one, and return it."""
    if revision != REVISIONS[-1]:
        raise SystemExit(
            f"{revision} is not the newest revision, {REVISIONS[-1]}: its steps cannot be taken alone."
        )
    before, kept = (DATA / f"state_{name}" for name in (REVISIONS[-2], revision))
    shutil.copytree(before, kept, dirs_exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.db"
        with closing(sqlite3.connect(path)) as database:
            database.executescript((before / "pool.sql").read_text())
        migrate(path)
        with closing(sqlite3.connect(path)) as database:
            (kept / "pool.sql").write_text("\n".join(database.iterdump()) + "\n")
    return kept


if __name__ == "__main__":
    sys.stdout.write(f"{keep(sys.argv[1]).name}\n")
