"""A backup holds everything, goes into any database, and a restore is whole or has not happened."""

import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from broken_backups import HOSTILE, half_written, spoil
from fleet_samples import (
    NOON,
    a_full_spec,
    a_node,
    a_placement,
    a_workload,
    an_event,
    exclusive,
    new_database,
    put_ground,
)
from full_disk import full_disk
from gpupool.cli.state.moving import move_to_postgres
from gpupool.cli.state.restoring import bring_back
from gpupool.cli.state.saving import save
from gpupool.core.errors import ConflictError, EnvironmentProblemError, NotFoundError, StorageError
from gpupool.core.home import MOVED, Home
from gpupool.core.sealing import Seal
from gpupool.store.backup.archive import reading, writing
from gpupool.store.backup.dumping import dump
from gpupool.store.backup.loading import holds, load_postgres
from gpupool.store.migrate import SCRIPTS
from gpupool.store.migrate_postgres import migrate_postgres
from gpupool.store.open import Where, open_database, open_store, schema_of
from gpupool.store.postgres import PostgresDatabase
from gpupool.store.schema import NEWEST, REVISIONS, Standing
from postgres_server import migrated_database, postgres_server

EVENTS = 1203
"""More than two pages."""


def quiet(table: str, rows: int) -> None:
    """Say nothing."""


async def fill(where: Where, seal: Seal) -> None:
    store = await open_store(where, seal=seal)
    async with store.write() as writer:
        node, device, workload = await put_ground(writer)
        await writer.put_node(a_node(name="zweiter «Knoten»", hourly_usd=0.25))
        await writer.put_workload(a_workload(spec=a_full_spec("full")))
        placement = a_placement(workload.id, node.id)
        await writer.put_placement(placement)
        await writer.claim(exclusive(placement, device))
        await writer.add_command(node.id, "launch", {"env": {"TOKEN": "t0p-secret"}})
        await writer.first_time(node.id, "rep-1")
        for _ in range(EVENTS):
            await writer.emit(an_event(subject=node.id))
    await store.close()


async def everything(where: Where, seal: Seal) -> list[Any]:
    store = await open_store(where, seal=seal)
    async with store.read() as view:
        nodes = await view.nodes()
        found = [
            nodes,
            await view.devices(),
            await view.workloads(deleted=True),
            await view.placements(),
            await view.claims(),
            await view.events(limit=5000),
            [await view.commands(node.id) for node in nodes],
        ]
    await store.close()
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The state folder of a pool that holds something, with a backup of it; tests get copies."""
    home = Home(tmp_path_factory.mktemp("made") / "home").prepare()
    asyncio.run(fill(new_database(home.data), Seal.load_or_make(home.seal_key)))
    save(home, home.database, home.root / "pool.zip", quiet)
    return home


@pytest.fixture
def home(made: Home, tmp_path: Path) -> Home:
    return Home(shutil.copytree(made.root, tmp_path / "home"))


@pytest.fixture
def seal(home: Home) -> Seal:
    return Seal.load_or_make(home.seal_key)


@pytest.fixture
def pool(home: Home) -> Path:
    return home.database


@pytest.fixture
def file(home: Home, tmp_path: Path) -> Path:
    return (home.root / "pool.zip").rename(tmp_path / "pool.zip")


@pytest.fixture(params=["sqlite", "postgres"])
def source(request: pytest.FixtureRequest, home: Home, seal: Seal) -> Where:
    if request.param == "sqlite":
        return home.database
    where = migrated_database()
    asyncio.run(fill(where, seal))
    return where


def other_home(tmp_path: Path) -> Home:
    return Home(tmp_path / "other").prepare()


@pytest.mark.parametrize("target", ["sqlite", "postgres"])
def test_everything_comes_back_in_any_database(
    home: Home, seal: Seal, source: Where, target: str, tmp_path: Path
) -> None:
    file, other = tmp_path / "pool.zip", other_home(tmp_path)
    told: list[str] = []
    saved = save(home, source, file, lambda table, _: told.append(table))
    assert told == list(saved["tables"])
    assert saved["tables"]["events"] == EVENTS
    where: Where = other.database if target == "sqlite" else postgres_server().new_database()
    restored = bring_back(other, where, file, quiet)
    assert restored["rows"] == saved["rows"]
    assert asyncio.run(everything(where, Seal.load_or_make(other.seal_key))) == asyncio.run(
        everything(source, seal)
    )


@pytest.mark.parametrize("target", ["sqlite", "postgres"])
def test_numbers_go_on_where_they_were(file: Path, target: str, tmp_path: Path) -> None:
    other = other_home(tmp_path)
    where: Where = other.database if target == "sqlite" else postgres_server().new_database()
    bring_back(other, where, file, quiet)

    async def next_numbers() -> tuple[int, int, bool]:
        store = await open_store(where)
        async with store.write() as writer:
            [node] = [node for node in await writer.nodes() if await writer.commands(node.id)]
            numbers = (
                await writer.emit(an_event()),
                await writer.add_command(node.id, "stop", {}),
                await writer.first_time(node.id, "rep-1"),
            )
        await store.close()
        return numbers

    assert asyncio.run(next_numbers()) == (EVENTS + 1, 2, False)


def test_it_is_private_and_holds_no_variable_in_clear(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with zipfile.ZipFile(file) as archive:
        tables = b"".join(archive.read(name) for name in archive.namelist() if name.startswith("tables/"))
    assert b"t0p-secret" not in tables


def test_an_empty_postgres_table_has_its_numbers_from_one(tmp_path: Path) -> None:
    empty = Home(tmp_path / "empty").prepare()
    save(empty, new_database(empty.data), tmp_path / "empty.zip", quiet)
    where = postgres_server().new_database()
    bring_back(other_home(tmp_path), where, tmp_path / "empty.zip", quiet)

    async def first() -> int:
        store = await open_store(where)
        async with store.write() as writer:
            seq = await writer.emit(an_event())
        await store.close()
        return seq

    assert asyncio.run(first()) == 1


def data_of(file: Path) -> list[int]:
    """Where in a backup its content lies: not the headers, half of which nobody reads."""
    places: list[int] = []
    content = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            name, extra = struct.unpack_from("<HH", content, entry.header_offset + 26)
            begin = entry.header_offset + 30 + name + extra
            places += range(begin, begin + entry.compress_size)
    return places


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_backup_is_refused_whole(file: Path, seed: int, tmp_path: Path) -> None:
    chance, content = random.Random(seed), bytearray(file.read_bytes())
    if seed % 2:
        del content[chance.randrange(len(content)) :]
    else:
        content[chance.choice(data_of(file))] ^= 0xFF
    file.write_bytes(content)
    other = other_home(tmp_path)
    with pytest.raises(StorageError, match="Nothing was changed"):
        bring_back(other, other.database, file, quiet)
    assert list(other.data.iterdir()) == list(other.keys.iterdir()) == []


def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    other, odd = other_home(tmp_path), tmp_path / "odd.zip"
    with pytest.raises(StorageError, match="cannot be read"):
        bring_back(other, other.database, odd, quiet)
    for content in (b"", b"no zip", b"PK\5\6" + bytes(18)):
        odd.write_bytes(content)
        with pytest.raises(StorageError, match="no backup of gpupool"):
            bring_back(other, other.database, odd, quiet)
    with zipfile.ZipFile(odd, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format": 2}))
    with pytest.raises(StorageError, match="of a later kind"):
        bring_back(other, other.database, odd, quiet)


async def no_rows() -> AsyncIterator[dict[str, Any]]:
    for row in list[dict[str, Any]]():
        yield row


async def one_event() -> AsyncIterator[dict[str, Any]]:
    yield {"seq": 7, "kind": "node.joined", "subject": "node-1", "at": NOON.isoformat(), "data": {"a": [1]}}


@pytest.mark.parametrize("target", ["sqlite", "postgres"])
def test_a_backup_of_an_older_version_is_brought_up_to_date(target: str, tmp_path: Path) -> None:
    file, other = tmp_path / "old.zip", other_home(tmp_path)
    with writing(file) as archive:
        asyncio.run(archive.table("events", one_event()))
        archive.finish(REVISIONS[0])
    where: Where = other.database if target == "sqlite" else postgres_server().new_database()
    bring_back(other, where, file, quiet)

    async def seen() -> list[tuple[int | None, dict[str, Any]]]:
        store = await open_store(where)
        async with store.read() as view:
            events = [(event.seq, dict(event.data), event.at) for event in await view.events()]
        await store.close()
        assert [at for _, _, at in events] == [NOON]
        return [(seq, data) for seq, data, _ in events]

    assert asyncio.run(seen()) == [(7, {"a": [1]})]


@pytest.mark.parametrize("target", ["sqlite", "postgres"])
@pytest.mark.parametrize("revision", ["9999", NEWEST])
def test_a_backup_that_does_not_fit_leaves_an_empty_database(
    target: str, revision: str, tmp_path: Path
) -> None:
    file, other = tmp_path / "odd.zip", other_home(tmp_path)
    with writing(file) as archive:
        asyncio.run(archive.table("events", one_event()))
        asyncio.run(archive.table("unheard_of", no_rows()))
        archive.finish(revision)
    where: Where = other.database if target == "sqlite" else postgres_server().new_database()
    for _ in range(2):
        with pytest.raises(StorageError, match=r"newer than this one|not known here"):
            bring_back(other, where, file, quiet)
        assert not other.database.exists()
        if not isinstance(where, Path):
            assert asyncio.run(holds(where)) == {}


def test_nothing_is_written_over(file: Path, home: Home, pool: Path, seal: Seal, tmp_path: Path) -> None:
    before = asyncio.run(everything(pool, seal))
    with pytest.raises(EnvironmentProblemError, match="is there already"):
        save(home, pool, file, quiet)
    with pytest.raises(ConflictError, match="There is a pool in"):
        bring_back(home, pool, file, quiet)
    with pytest.raises(StorageError, match="is not empty"):
        bring_back(other_home(tmp_path), migrated_database(), file, quiet)
    assert asyncio.run(everything(pool, seal)) == before
    assert [path.name for path in tmp_path.glob(".*")] == []
    assert list((tmp_path / "other/keys").iterdir()) == []


def test_other_keys_are_not_written_over(file: Path, tmp_path: Path) -> None:
    other = other_home(tmp_path)
    Seal.load_or_make(other.seal_key)
    kept = other.seal_key.read_bytes()
    with pytest.raises(ConflictError, match="is another than the backup's"):
        bring_back(other, other.database, file, quiet)
    assert other.seal_key.read_bytes() == kept
    assert not other.database.exists()


def test_without_a_pool_there_is_nothing_to_save(tmp_path: Path) -> None:
    home = other_home(tmp_path)
    with pytest.raises(NotFoundError, match="There is no pool in"):
        save(home, home.database, tmp_path / "pool.zip", quiet)
    assert not (tmp_path / "pool.zip").exists()


def test_a_restore_that_was_killed_is_simply_run_again(file: Path, tmp_path: Path) -> None:
    other = other_home(tmp_path)
    for leftover in ("pool.db.restoring", "pool.db.restoring-wal"):
        (other.data / leftover).write_bytes(b"half")
    bring_back(other, other.database, file, quiet)
    assert sorted(path.name for path in other.data.iterdir()) == ["pool.db"]


@pytest.mark.parametrize("broken_off", [None, "begun", MOVED])
def test_a_move_takes_everything_along_and_can_be_ended(
    home: Home, pool: Path, seal: Seal, broken_off: str | None
) -> None:
    where = postgres_server().new_database()
    before = asyncio.run(everything(pool, seal))
    moved = move_to_postgres(home, where, quiet)
    if broken_off:
        # As if the power had failed before the file was put aside.
        Path(moved["kept"]).rename(pool)
        home.moved.write_text(json.dumps({"state": broken_off, "to": str(where)}))
        (home.data / ".move-killed").mkdir()
        moved = move_to_postgres(home, where, quiet)
    assert asyncio.run(everything(where, seal)) == before
    assert not pool.exists()
    assert Path(moved["kept"]).exists()
    assert list(home.data.glob(".move-*")) == []


def gpupool(home: Home, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"GPUPOOL_HOME": str(home.root), "GPUPOOL_CONTROL_PORT": "0"} | variables
    return subprocess.run(
        [sys.executable, "-m", "gpupool", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_commands(home: Home, pool: Path, seal: Seal, tmp_path: Path) -> None:
    before = asyncio.run(everything(pool, seal))
    other, where, file = other_home(tmp_path), postgres_server().new_database(), tmp_path / "pool.zip"
    saved = gpupool(home, "backup", str(file), "--json")
    assert (saved.returncode, json.loads(saved.stdout)["tables"]["events"]) == (0, EVENTS)
    restored = gpupool(other, "restore", str(file))
    assert restored.returncode == 0, restored.stderr
    assert "rows and 1 keys are back" in restored.stdout
    nowhere = gpupool(other, "database", "move")
    assert (nowhere.returncode, "createdb" in nowhere.stderr) == (2, True)
    moved = gpupool(other, "database", "move", GPUPOOL_DATABASE_URL=where.dsn)
    assert moved.returncode == 0, moved.stderr
    assert asyncio.run(everything(where, Seal.load_or_make(other.seal_key))) == before
    lost = gpupool(other, "control", "serve")
    assert lost.returncode == StorageError.exit_code
    assert "has moved to postgresql://gpupool@local" in lost.stderr
    for again in (
        gpupool(other, "database", "move", GPUPOOL_DATABASE_URL=where.dsn),
        gpupool(other, "backup", str(tmp_path / "again.zip")),
    ):
        assert again.returncode == NotFoundError.exit_code
        assert "has moved to postgresql://gpupool@local" in again.stderr
        assert "nothing left to move" in again.stderr
    told = gpupool(other, "doctor", "--json").stdout
    [finding] = [found for found in json.loads(told)["findings"] if found["name"] == "database"]
    assert (finding["verdict"], "has moved to" in finding["why"]) == ("warn", True)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_backup_is_refused_in_words_and_leaves_nothing(
    file: Path, what: str, tmp_path: Path
) -> None:
    spoil(file, HOSTILE[what])
    other, where = other_home(tmp_path), postgres_server().new_database()
    for target in (other.database, where):
        with pytest.raises(StorageError):
            bring_back(other, target, file, quiet)
    assert list(other.data.iterdir()) == list(other.keys.iterdir()) == []
    assert asyncio.run(schema_of(where)).standing is Standing.EMPTY


def test_a_text_with_a_nul_goes_into_postgres_all_the_same(home: Home, pool: Path, seal: Seal) -> None:
    with closing(sqlite3.connect(pool)) as connection:
        connection.execute("UPDATE placements SET reason = 'a' || char(0) || 'b'")
        connection.commit()
    where = postgres_server().new_database()
    move_to_postgres(home, where, quiet)
    placements = asyncio.run(everything(where, seal))[3]
    assert [placement.reason for placement in placements] == ["a\N{REPLACEMENT CHARACTER}b"]


def test_the_log_of_another_database_never_meets_a_restored_one(file: Path, tmp_path: Path) -> None:
    other = other_home(tmp_path)
    log = other.data / "pool.db-wal"
    log.write_bytes(b"changes of the database that was moved away")
    with pytest.raises(ConflictError, match="moved away without it"):
        bring_back(other, other.database, file, quiet)
    log.unlink()
    bring_back(other, other.database, file, quiet)


def test_a_restore_that_was_overtaken_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = postgres_server().new_database()
    begin = PostgresDatabase.begin_writing

    async def overtaken(database: PostgresDatabase, connection: AsyncConnection) -> None:
        monkeypatch.undo()
        # As a control does that starts meanwhile.
        await migrate_postgres(where, SCRIPTS)
        await begin(database, connection)

    monkeypatch.setattr(PostgresDatabase, "begin_writing", overtaken)
    with reading(file) as archive, pytest.raises(StorageError, match="is not empty"):
        asyncio.run(load_postgres(archive, where))
    assert sum(asyncio.run(holds(where)).values()) == 0


def test_a_disk_that_is_full_is_blamed_and_nothing_stays(home: Home, seal: Seal, tmp_path: Path) -> None:
    # From PostgreSQL, whose processes have room; SQLite needs some itself to read.
    where, file, other = migrated_database(), tmp_path / "new.zip", other_home(tmp_path)
    asyncio.run(fill(where, seal))
    with full_disk(left=2048), pytest.raises(EnvironmentProblemError) as caught:
        save(home, where, file, quiet)
    assert f"The backup {file} cannot be written: File too large" in caught.value.message
    assert list(tmp_path.glob("*new.zip*")) == []
    save(home, where, file, quiet)
    with full_disk(left=8192), pytest.raises(StorageError):
        bring_back(other, other.database, file, quiet)
    assert list(other.data.iterdir()) == list(other.keys.iterdir()) == []


def test_whom_to_tell_is_kept_and_comes_back_secret(home: Home, pool: Path, tmp_path: Path) -> None:
    home.alerts.write_text("targets: []\n")
    home.alerts.chmod(0o600)
    file, other = tmp_path / "new.zip", other_home(tmp_path)
    save(home, pool, file, quiet)
    other.alerts.write_text("targets: [] # mine\n")
    with pytest.raises(ConflictError, match=r"alerts\.yaml is another than the backup's"):
        bring_back(other, other.database, file, quiet)
    assert list(other.keys.iterdir()) == []
    other.alerts.unlink()
    bring_back(other, other.database, file, quiet)
    assert other.alerts.read_text() == "targets: []\n"
    assert stat.S_IMODE(other.alerts.stat().st_mode) == 0o600


def test_a_schema_that_changes_meanwhile_is_refused(pool: Path, tmp_path: Path) -> None:
    async def overtaken() -> None:
        database = await open_database(pool)
        with closing(sqlite3.connect(pool)) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
            connection.commit()
        try:
            with writing(tmp_path / "new.zip") as archive:
                await dump(database, archive)
        finally:
            await database.readers.dispose()
            await database.writers.dispose()

    with pytest.raises(StorageError, match=f"become 9999 meanwhile; this gpupool knows {NEWEST}"):
        asyncio.run(overtaken())
    assert not (tmp_path / "new.zip").exists()


@pytest.mark.parametrize(("kind", "hidden"), [("nameless", 0), ("named", 1)])
def test_a_backup_that_is_killed_leaves_no_keys_behind(
    home: Home, pool: Path, tmp_path: Path, kind: str, hidden: int
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    killed, working = half_written(folder / "a.zip", kind), half_written(folder / "b.zip", kind)
    assert len(list(folder.iterdir())) == 2 * hidden
    killed.communicate("k")
    assert killed.returncode == -signal.SIGKILL
    assert len(list(folder.iterdir())) == 2 * hidden
    save(home, pool, folder / "c.zip", quiet)
    assert len(list(folder.glob(".*"))) == hidden, "the one that still works keeps its file"
    working.communicate("g")
    assert working.returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["b.zip", "c.zip"]
    assert (folder / "b.zip").read_bytes() == b"a key"
