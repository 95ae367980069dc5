"""Doctor reads any database, says how it stands, and leaves every byte as it was."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpupool.cli.checks.database import WARN_WAL, check_database, check_wal
from gpupool.cli.checks.finding import Finding, Verdict
from gpupool.core.home import Home
from gpupool.store.looking import row_counts, untouched
from gpupool.store.migrate import migrate
from gpupool.store.schema import NEWEST


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "pool").prepare()
    migrate(made.database)
    return made


def found(home: Home) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_database(home, in_use=False)}


def revise(home: Home, revision: str) -> None:
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        connection.commit()


def test_a_current_database_is_sound(home: Home) -> None:
    findings = found(home)
    assert {finding.verdict for finding in findings.values()} == {Verdict.GOOD}
    assert findings["database schema"].measured == f"revision {NEWEST}"


def test_no_database_is_fine(tmp_path: Path) -> None:
    (only,) = check_database(Home(tmp_path), in_use=False)
    assert only.verdict is Verdict.GOOD


def test_a_newer_database_fails(home: Home) -> None:
    revise(home, "9999")
    finding = found(home)["database schema"]
    assert finding.verdict is Verdict.FAIL
    assert finding.why is not None
    assert "newer gpupool" in finding.why


def test_another_programs_database_fails(home: Home) -> None:
    home.database.unlink()
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("CREATE TABLE recipes (name)")
    finding = found(home)["database schema"]
    assert finding.verdict is Verdict.FAIL
    assert str(home.database) in (finding.why or "")


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_database_fails_and_is_named_by_its_own_path(home: Home, content: bytes) -> None:
    home.database.write_bytes(content)
    finding = found(home)["database schema"]
    assert finding.verdict is Verdict.FAIL
    assert str(home.database) in (finding.why or "")
    assert str(home.data) in (finding.remedy or "")


def test_damaged_pages_fail(home: Home) -> None:
    content = bytearray(home.database.read_bytes())
    content[4096 * 3 : 4096 * 5] = b"\xa5" * 8192
    home.database.write_bytes(content)
    assert found(home)["database pages"].verdict is Verdict.FAIL


def test_a_log_that_a_crash_left_is_read_and_stays(home: Home) -> None:
    """What was committed before the crash is counted; file and log are the same bytes afterwards."""
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("CREATE TABLE probe (n)")
        connection.execute("INSERT INTO probe VALUES (1), (2), (3)")
        connection.commit()
        wal = home.data / "pool.db-wal"
        before = {path.name: path.read_bytes() for path in (home.database, wal)}
    # Closing folded the log back; put both files as a crash leaves them.
    for path in home.data.iterdir():
        path.unlink()
    for name, content in before.items():
        (home.data / name).write_bytes(content)
    assert found(home)["database pages"].verdict is Verdict.GOOD
    with untouched(home.database, in_use=False) as path:
        assert row_counts(path)["probe"] == 3
    assert {path.name: path.read_bytes() for path in home.data.iterdir()} == before


def test_a_database_in_use_is_read_where_it_is(home: Home) -> None:
    with untouched(home.database, in_use=True) as path:
        assert path == home.database


def test_a_log_that_runs_away_warns(home: Home) -> None:
    with (home.data / "pool.db-wal").open("wb") as file:
        file.truncate(WARN_WAL + 1)
    assert check_wal(home.database).verdict is Verdict.WARN
