"""Migrations: from nothing, from older, never from newer, foreign or damaged; and nothing half done."""

import asyncio
import fcntl
import re
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from fleet_samples import new_database
from gpupool.core.errors import StorageError
from gpupool.store.migrate import SCRIPTS, back_up, main, migrate
from gpupool.store.schema import NEWEST, REVISIONS, Standing, inspect
from gpupool.store.tables import METADATA
from polling import eventually

LOCKS = Path("/proc/locks")
NEXT = (*REVISIONS, "next")
NEXT_STEP = """
import sqlalchemy as sa
from alembic import op
revision = "next"
down_revision = "{newest}"
def upgrade():
    op.add_column("nodes", sa.Column("rack", sa.String()))
    op.execute("{last}")
"""


@pytest.fixture(autouse=True)
def _children_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2] / "src"))


def steps_with_a_next_one(folder: Path, last: str) -> Path:
    """Return a folder of steps as a later version would ship it; ``last`` is the SQL that ends its new step."""
    scripts = folder / "steps"
    (scripts / "versions").mkdir(parents=True)
    (scripts / "env.py").write_text((SCRIPTS / "env.py").read_text())
    for step in (SCRIPTS / "versions").glob("r*.py"):
        (scripts / "versions" / step.name).write_text(step.read_text())
    (scripts / "versions" / "rnext_rack.py").write_text(NEXT_STEP.format(newest=NEWEST, last=last))
    return scripts


def columns(path: Path, table: str) -> list[str]:
    """Return the names of a table's columns."""
    with closing(sqlite3.connect(path)) as connection:
        return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def set_revision(path: Path, revision: str) -> None:
    """Write another revision into the database."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))


def backups(path: Path) -> list[Path]:
    """Return the backup copies beside a database."""
    return sorted(path.parent.glob(f"{path.name}.backup-*"))


def test_a_new_database_has_the_tables_of_the_code(tmp_path: Path) -> None:
    path = new_database(tmp_path)
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def test_the_check_and_the_partial_index_are_there_too(tmp_path: Path) -> None:
    with closing(sqlite3.connect(new_database(tmp_path))) as connection:
        stored = "\n".join(str(row[0]) for row in connection.execute("SELECT sql FROM sqlite_master"))
    assert "CHECK (mib >= 0)" in stored
    assert "AUTOINCREMENT" in stored
    assert "WHERE deleted = 0" in stored


def test_the_known_revisions_are_those_of_the_steps() -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    steps = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(step.revision for step in steps)[::-1] == REVISIONS


def test_the_database_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "pool.db"
    migrate(path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_is_there_keeps_its_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    migrate(tmp_path / "pool.db")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_second_run_changes_nothing_and_loads_no_alembic(tmp_path: Path) -> None:
    path = new_database(tmp_path)
    before = path.read_bytes()
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpupool.store.migrate", "--database", path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "alembic" not in told.stderr
    assert "sqlalchemy" not in told.stderr
    assert path.read_bytes() == before
    assert backups(path) == []


def test_an_older_database_is_copied_and_brought_up_to_date(tmp_path: Path) -> None:
    path = new_database(tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "INSERT INTO events (kind, subject, at, data) VALUES ('a.b', 'x', '2026-01-01', '{}')"
        )
    migrate(path, steps_with_a_next_one(tmp_path, "SELECT 1"), NEXT)
    assert "rack" in columns(path, "nodes")
    assert inspect(path, NEXT).standing is Standing.CURRENT
    (copy,) = backups(path)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert NEWEST in copy.name
    assert inspect(copy).standing is Standing.CURRENT
    assert "rack" not in columns(copy, "nodes")
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT kind FROM events").fetchall() == [("a.b",)]


def test_a_step_that_fails_leaves_the_old_schema(tmp_path: Path) -> None:
    path = new_database(tmp_path)
    with pytest.raises(StorageError, match="no such table: nowhere"):
        migrate(path, steps_with_a_next_one(tmp_path, "DELETE FROM nowhere"), NEXT)
    assert "rack" not in columns(path, "nodes")
    assert inspect(path).standing is Standing.CURRENT
    assert len(backups(path)) == 1


def test_a_first_migration_that_fails_leaves_nothing_that_looks_ready(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    with pytest.raises(StorageError, match="nowhere"):
        migrate(path, steps_with_a_next_one(tmp_path, "DELETE FROM nowhere"), NEXT)
    assert inspect(path).standing is Standing.EMPTY


def test_a_newer_database_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = new_database(tmp_path)
    set_revision(path, "0099")
    before = path.read_bytes()
    assert main(["--database", str(path)]) == 3
    what, remedy = capsys.readouterr().err.splitlines()
    assert "0099" in what
    assert "newer gpupool" in what
    assert "newer gpupool" in remedy
    assert path.read_bytes() == before
    assert backups(path) == []


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE theirs (id INTEGER)")
    with pytest.raises(StorageError, match="not one of gpupool"):
        migrate(path)
    assert columns(path, "theirs") == ["id"]


def test_a_file_that_is_no_database_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pool.db"
    path.write_bytes(b"not a database at all " * 500)
    assert main(["--database", str(path)]) == 3
    what, remedy = capsys.readouterr().err.splitlines()
    assert "cannot be read" in what
    assert "backup" in remedy
    assert path.read_bytes().startswith(b"not a database")


def test_damage_inside_the_file_is_found(tmp_path: Path) -> None:
    path = new_database(tmp_path)
    with path.open("r+b") as file:
        for page in range(4, 30):
            file.seek(page * 4096)
            file.write(b"\xa5" * 4096)
    with pytest.raises(StorageError, match="cannot be read") as caught:
        migrate(path)
    assert "backup" in caught.value.remedy


def test_a_path_that_cannot_be_used_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").write_text("a file where a folder should be")
    assert main(["--database", str(tmp_path / "data" / "pool.db")]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_two_migrations_at_once_make_one_database(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    command = [sys.executable, "-m", "gpupool.store.migrate", "--database", str(path)]
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda _: subprocess.run(command, capture_output=True, check=False), range(2)))
    assert [run.returncode for run in runs] == [0, 0]
    assert inspect(path).standing is Standing.CURRENT
    assert inspect(path).revision == NEWEST


async def test_a_migration_waits_for_the_one_at_work(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    with path.with_name("pool.db.migration-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpupool.store.migrate", "--database", str(path)
        )
        wanted = re.compile(rf"-> FLOCK .* {waiting.pid} ")
        await eventually(lambda: wanted.search(LOCKS.read_text()), what="the second migration's wait")
        done = new_database(tmp_path).read_bytes()
    assert await waiting.wait() == 0
    assert path.read_bytes() == done


def test_a_backup_holds_what_is_only_in_the_log(tmp_path: Path) -> None:
    path = new_database(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        with connection:
            connection.execute("INSERT INTO seen_keys VALUES ('node-1', 1, 'rep-1')")
        copy = back_up(path, "0001")
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT key FROM seen_keys").fetchall() == [("rep-1",)]
