"""Opening the store: only what is migrated, in a process that never loads alembic."""

import asyncio
import os
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fleet_samples import a_node, new_database
from gpupool.core.errors import StorageError
from gpupool.core.processes import identify
from gpupool.store.open import open_store, run_migration
from gpupool.store.schema import NEWEST

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(autouse=True)
def _children_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))


async def test_a_migrated_store_opens_and_works(tmp_path: Path) -> None:
    path = tmp_path / "data" / "pool.db"
    await run_migration(path)
    await run_migration(path)
    store = await open_store(path)
    node = a_node()
    async with store.write() as writer:
        await writer.put_node(node)
    async with store.read() as view:
        assert await view.node(node.id) == node
    assert stat.S_IMODE(path.with_name("pool.db-wal").stat().st_mode) == 0o600
    await store.close()
    assert not path.with_name("pool.db-wal").exists()


async def test_a_missing_database_is_never_made_by_opening(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    with pytest.raises(StorageError, match="missing") as caught:
        await open_store(path)
    assert "gpupool.store.migrate" in caught.value.remedy
    assert not path.exists()


async def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    path = new_database(tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0099'")
    for attempt in (open_store, run_migration):
        with pytest.raises(StorageError, match=f"newer gpupool; this one knows {NEWEST}") as caught:
            await attempt(path)
        assert "Install the newer gpupool" in caught.value.remedy
        assert caught.value.exit_code == 3


async def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    path.write_bytes(b"\x00garbage" * 2000)
    for attempt in (open_store, run_migration):
        with pytest.raises(StorageError, match="cannot be read") as caught:
            await attempt(path)
        assert "backup" in caught.value.remedy


async def test_a_migration_that_crashes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "gpupool").mkdir()
    (tmp_path / "gpupool" / "__init__.py").write_text("raise SystemExit('the disk is on fire')")
    with pytest.raises(StorageError, match="status 1: the disk is on fire"):
        await run_migration(tmp_path / "pool.db")


async def test_a_cancelled_migration_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "gpupool"
    package.mkdir()
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    (package / "__init__.py").write_text(
        f"import os, time\nopen({str(pipe)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    task = asyncio.create_task(run_migration(tmp_path / "pool.db"))
    child = int(await asyncio.to_thread(pipe.read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert identify(child) is None


async def test_control_never_loads_alembic(tmp_path: Path) -> None:
    path = new_database(tmp_path)
    program = (
        "import asyncio, pathlib, sys\n"
        "from gpupool.store.open import open_store, run_migration\n"
        "async def main():\n"
        f"    path = pathlib.Path({str(path)!r})\n"
        "    await run_migration(path)\n"
        "    store = await open_store(path)\n"
        "    await store.close()\n"
        "    print(sorted(name for name in sys.modules if name.split('.')[0] in ('alembic', 'mako')))\n"
        "asyncio.run(main())\n"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", program, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await child.communicate()
    assert told == b"[]\n"
    assert child.returncode == 0
