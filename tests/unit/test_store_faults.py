"""Trouble with the database reaches callers as StorageError that says what to do, and passes when the trouble does."""

import asyncio
import sqlite3
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import event, text
from sqlalchemy.engine import ExceptionContext

import gpupool.store.sql_writer
from fleet_samples import NOON, a_node, a_spec, a_workload, an_event, new_database, put_ground
from gpupool.core.errors import ConflictError, StorageError
from gpupool.store.sql_store import SqlStore
from gpupool.store.sqlite import SqliteDatabase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_database(tmp_path)


@pytest_asyncio.fixture
async def store(path: Path) -> AsyncIterator[SqlStore]:
    opened = SqlStore(SqliteDatabase(path, busy_seconds=0))
    yield opened
    await opened.close()


@pytest.fixture
def stranger(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of another program."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


async def test_a_lock_that_stays_is_told_and_one_that_goes_is_forgotten(
    store: SqlStore, stranger: sqlite3.Connection
) -> None:
    stranger.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="kept the database locked for 0 s") as caught:
        async with store.write():
            pass
    assert "end it" in caught.value.remedy
    async with store.read() as view:
        assert await view.events() == []
    stranger.execute("ROLLBACK")
    async with store.write() as writer:
        await writer.emit(an_event())


async def test_a_writer_waits_for_another_process(path: Path, stranger: sqlite3.Connection) -> None:
    database = SqliteDatabase(path, busy_seconds=60)
    patient = SqlStore(database)
    stranger.execute("BEGIN IMMEDIATE")
    refusals: list[str] = []

    @event.listens_for(database.writers.sync_engine, "handle_error")
    def _let_go_after_the_first_refusal(context: ExceptionContext) -> None:
        refusals.append(str(context.original_exception))
        stranger.execute("ROLLBACK")

    async with patient.write() as writer:
        await writer.emit(an_event())
    assert refusals == ["database is locked"]
    await patient.close()


async def test_a_full_disk_is_told_and_loses_only_that_transaction(store: SqlStore) -> None:
    async with store.write() as writer:
        await writer.emit(an_event("before.full"))
        await writer._connection.execute(text("PRAGMA max_page_count = 1"))

    async def write_too_much() -> None:
        async with store.write() as writer:
            for _ in range(200):
                await writer.emit(an_event("never.kept", text="x" * 4000))

    with pytest.raises(StorageError, match="full") as caught:
        await write_too_much()
    assert "Free space" in caught.value.remedy
    async with store.write() as writer:
        await writer._connection.execute(text("PRAGMA max_page_count = 100000"))
        await writer.emit(an_event("after.full"))
    async with store.read() as view:
        assert [found.kind for found in await view.events()] == ["before.full", "after.full"]


async def test_a_view_cannot_write(store: SqlStore) -> None:
    async with store.read() as view:
        with pytest.raises(Exception, match="readonly"):
            await view._connection.execute(text("DELETE FROM events"))


@pytest.mark.parametrize(
    ("damage", "noun"),
    [
        ("UPDATE nodes SET state = 'flying'", "node"),
        ("UPDATE nodes SET joined_at = 'once upon a time'", "node"),
        ("UPDATE nodes SET runtimes = '[broken'", "node"),
    ],
)
async def test_a_row_that_cannot_be_read_is_told(
    store: SqlStore, stranger: sqlite3.Connection, damage: str, noun: str
) -> None:
    async with store.write() as writer:
        await writer.put_node(a_node())
    stranger.execute(damage)
    async with store.read() as view:
        with pytest.raises(StorageError, match=f"A stored {noun} cannot be read"):
            await view.nodes()


async def test_an_unknown_field_of_a_spec_is_told(store: SqlStore, stranger: sqlite3.Connection) -> None:
    async with store.write() as writer:
        await put_ground(writer)
    stranger.execute("UPDATE workloads SET spec = json_set(spec, '$.later', 1)")
    async with store.read() as view:
        with pytest.raises(StorageError, match="A stored workload cannot be read"):
            await view.workloads()


async def test_a_field_that_came_later_takes_its_default(
    store: SqlStore, stranger: sqlite3.Connection
) -> None:
    async with store.write() as writer:
        _, _, workload = await put_ground(writer)
    stranger.execute(
        "UPDATE workloads SET spec = json_remove(spec, '$.grace_seconds', '$.selector.min_vram_mib')"
    )
    async with store.read() as view:
        assert await view.workload(workload.id) == workload


async def test_a_lost_table_is_told_with_the_way_to_mend_it(
    store: SqlStore, stranger: sqlite3.Connection
) -> None:
    stranger.execute("DROP TABLE events")
    async with store.read() as view:
        with pytest.raises(StorageError, match="no such table: events") as caught:
            await view.events()
    assert "migrate" in caught.value.remedy


async def test_neither_a_message_nor_a_traceback_holds_what_was_stored(
    store: SqlStore, stranger: sqlite3.Connection
) -> None:
    secret = "hunter2"
    stranger.execute("CREATE TRIGGER refuse BEFORE INSERT ON workloads BEGIN SELECT RAISE(FAIL, 'no'); END")
    spec = a_spec(env={"TOKEN": secret})
    workload = a_workload(spec=spec, why=secret)
    naive = a_workload(spec=spec, why=secret, not_before=NOON.replace(tzinfo=None))
    for kept in (workload, naive):
        with pytest.raises((StorageError, ConflictError)) as caught:
            async with store.write() as writer:
                await writer.put_workload(kept)
        assert secret not in "".join(traceback.format_exception(caught.value))
        assert "INSERT" not in caught.value.message


async def test_a_moment_without_a_time_zone_is_refused(store: SqlStore) -> None:
    node = a_node()
    naive = a_node(seen_at=node.seen_at.replace(tzinfo=None))
    with pytest.raises(StorageError, match="without time zone"):
        async with store.write() as writer:
            await writer.put_node(naive)


async def test_only_the_newest_keys_of_a_scope_are_remembered(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpupool.store.sql_writer.KEPT_KEYS == 10_000
    monkeypatch.setattr(gpupool.store.sql_writer, "KEPT_KEYS", 10)
    async with store.write() as writer:
        assert await writer.first_time("quiet", "old")
        for number in range(11):
            assert await writer.first_time("busy", f"rep-{number}")
        assert not await writer.first_time("busy", "rep-1")
        assert not await writer.first_time("busy", "rep-10")
        assert await writer.first_time("busy", "rep-0")
        assert await writer.first_time("busy", "rep-1")
        assert not await writer.first_time("quiet", "old")


async def test_a_cancellation_during_a_commit_neither_cuts_it_nor_costs_the_connection(
    store: SqlStore,
) -> None:
    thrown_away: list[object] = []

    async def write() -> None:
        async with store.write() as writer:
            await writer.emit(an_event("kept.anyway"))

    task = asyncio.create_task(write())
    engine = store._database.writers.sync_engine
    event.listen(engine, "commit", lambda _connection: task.cancel())
    event.listen(engine.pool, "invalidate", lambda *told: thrown_away.append(told))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert thrown_away == []
    async with store.read() as view:
        assert [found.kind for found in await view.events()] == ["kept.anyway"]
