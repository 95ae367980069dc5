"""What PostgreSQL does of its own: restarts, paused writers, rights, and words for what an operator got wrong."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import text

from fleet_samples import a_node, an_event
from gpupool.cli.bundle.secrets import known_secrets
from gpupool.cli.checks.database import check_database
from gpupool.core.errors import ConflictError, InvalidInputError, StorageError
from gpupool.core.home import Home
from gpupool.fleet.ports.store import Store
from gpupool.store.migrate import SCRIPTS
from gpupool.store.migrate_postgres import migrate_postgres
from gpupool.store.open import open_store, run_migration
from gpupool.store.postgres import PostgresDatabase, Work
from gpupool.store.postgres_schema import inspect_postgres
from gpupool.store.postgres_url import PostgresUrl, parse_postgres_url
from gpupool.store.schema import Standing
from gpupool.store.sql_store import SqlStore
from polling import eventually
from postgres_server import migrated_database, postgres_server
from store_factories import PostgresFactory, start_writer

SECRET = "pa55-of-the-pool"


@pytest.fixture
def where() -> PostgresUrl:
    return migrated_database()


@pytest_asyncio.fixture
async def store(where: PostgresUrl) -> AsyncIterator[Store]:
    opened = await open_store(where)
    yield opened
    await opened.close()


async def kinds(store: Store) -> list[str]:
    async with store.read() as view:
        return [event.kind for event in await view.events(limit=1000)]


async def test_a_server_that_was_restarted_is_used_again_without_a_hand(store: Store) -> None:
    async with store.write() as writer:
        await writer.emit(an_event("before.crash"))
    server = postgres_server()
    server.stop(signal.SIGKILL)
    with pytest.raises(StorageError, match="cannot be used"):
        await kinds(store)
    server.start()
    assert await kinds(store) == ["before.crash"]
    async with store.write() as writer:
        await writer.emit(an_event("after.crash"))
    assert await kinds(store) == ["before.crash", "after.crash"]


async def test_a_server_that_dies_inside_a_transaction_keeps_nothing_of_it(store: Store) -> None:
    async def write_meanwhile() -> None:
        async with store.write() as writer:
            await writer.emit(an_event("half.done"))
            postgres_server().stop(signal.SIGKILL)
            postgres_server().start()
            await writer.emit(an_event("other.half"))

    with pytest.raises(StorageError):
        await write_meanwhile()
    assert await kinds(store) == []


async def test_a_writer_that_is_paused_holds_nobody_up_and_is_refused_when_it_wakes(
    where: PostgresUrl, store: Store
) -> None:
    paused = SqlStore(PostgresDatabase(where, busy_seconds=5, paused_seconds=0.3))
    inside = asyncio.Event()
    wake = asyncio.Event()

    async def write_and_pause() -> None:
        async with paused.write() as writer:
            await writer.emit(an_event("stale.one"))
            inside.set()
            await wake.wait()
            await writer.emit(an_event("stale.two"))

    task = asyncio.create_task(write_and_pause())
    await inside.wait()
    async with store.write() as writer:
        await writer.emit(an_event("fresh.one"))
    wake.set()
    with pytest.raises(StorageError):
        await task
    assert await kinds(store) == ["fresh.one"]
    async with paused.write() as writer:
        await writer.emit(an_event("fresh.two"))
    assert await kinds(store) == ["fresh.one", "fresh.two"]
    await paused.close()


async def test_a_stopped_process_gives_its_turn_back_when_it_is_killed(
    where: PostgresUrl, store: Store
) -> None:
    factory = PostgresFactory.__new__(PostgresFactory)
    factory.url = where
    child = await start_writer(
        factory,
        [
            "async with store.write() as writer:",
            "    await writer.emit(event('stale.one', 'x'))",
            "    print('inside', flush=True)",
            "    await asyncio.Event().wait()",
        ],
    )
    assert child.stdout is not None
    assert [await child.stdout.readline() for _ in range(2)] == [b"open\n", b"inside\n"]
    child.kill()
    async with store.write() as writer:
        await writer.emit(an_event("fresh.one"))
    assert await kinds(store) == ["fresh.one"]
    await child.wait()


async def test_a_turn_that_does_not_come_is_told(where: PostgresUrl, store: Store) -> None:
    impatient = SqlStore(PostgresDatabase(where, busy_seconds=0.05))
    async with store.write():
        with pytest.raises(StorageError, match=r"locked for 0\.05 s") as caught:
            async with impatient.write():
                pass
    assert "pg_locks" in caught.value.remedy
    async with impatient.write() as writer:
        await writer.emit(an_event())
    await impatient.close()


async def test_a_refused_change_can_be_survived_by_its_transaction(store: Store) -> None:
    node = a_node()
    async with store.write() as writer:
        await writer.put_node(node)
        with pytest.raises(ConflictError):
            await writer.put_node(a_node(name=node.name))
        await writer.put_node(replace(node, hourly_usd=0.5))
    async with store.read() as view:
        assert [found.hourly_usd for found in await view.nodes()] == [0.5]


async def test_a_failed_statement_that_nobody_minds_is_no_silent_loss(store: Store) -> None:
    async def lose_silently() -> None:
        async with store.write() as writer:
            await writer.emit(an_event("kept.not"))
            with pytest.raises(StorageError):
                await writer.emit(an_event("a\0b"))

    with pytest.raises(StorageError, match="nothing of it is kept"):
        await lose_silently()
    assert await kinds(store) == []


async def test_a_view_cannot_write(where: PostgresUrl) -> None:
    database = PostgresDatabase(where, busy_seconds=5)
    async with database.readers.connect() as connection:
        with pytest.raises(Exception, match="read-only transaction"):
            await connection.execute(text("DELETE FROM events"))
    await database.readers.dispose()
    await database.writers.dispose()


async def test_controls_work_beside_each_other_and_keep_tools_off_that_need_a_database_alone(
    where: PostgresUrl,
) -> None:
    first, second = await open_store(where, control=True), await open_store(where, control=True)
    restore = PostgresDatabase(where, busy_seconds=1, work=Work.ALONE)
    with pytest.raises(StorageError, match="A control works on postgresql://"):
        await restore.writers.connect()
    for opened in (first, second):
        async with opened.write() as writer:
            await writer.emit(an_event())
        await opened.close()
    connection = await restore.writers.connect()
    with pytest.raises(StorageError, match="is being filled or moved just now"):
        await open_store(where, control=True)
    tool = await open_store(where)
    async with tool.write() as writer:
        await writer.emit(an_event())
    await tool.close()
    await connection.close()
    await restore.writers.dispose()


async def test_migrations_at_one_time_come_one_after_another() -> None:
    where = postgres_server().new_database()
    await asyncio.gather(*(migrate_postgres(where, SCRIPTS) for _ in range(3)))
    assert (await inspect_postgres(where)).standing is Standing.CURRENT
    await run_migration(where)


async def test_a_database_of_others_or_of_later_is_refused_and_left_alone() -> None:
    server = postgres_server()
    foreign, newer, empty = server.new_database(), migrated_database(), server.new_database()
    server.sql("CREATE TABLE theirs (x int)", str(foreign.url.database))
    server.sql("UPDATE alembic_version SET version_num = '9999'", str(newer.url.database))
    for where, words in (
        (foreign, "holds tables that are not gpupool's"),
        (newer, "made by a newer gpupool"),
    ):
        for attempt in (open_store, run_migration):
            with pytest.raises(StorageError, match=words):
                await attempt(where)
    assert server.sql("SELECT version_num FROM alembic_version", str(newer.url.database)) == "9999\n"
    with pytest.raises(StorageError, match="is not ready: its schema is missing") as caught:
        await open_store(empty)
    assert "migrate --postgres" in caught.value.remedy


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://me@host/pool", "begins with mysql"),
        ("postgresql://host", "names no database"),
        ("what is this", "is not a URL"),
        ("postgresql://host/pool?pool_size=9", "pool_size"),
        (f"postgresql://me:{SECRET}@host:port/pool", "is not a URL"),
        (f"postgresql://me:{SECRET}@host:99999/pool", "names the port 99999"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        parse_postgres_url(url)
    assert SECRET not in f"{caught.value} {caught.value.remedy}"


async def test_a_server_out_of_reach_is_named_without_the_password() -> None:
    url = parse_postgres_url(f"postgresql://me:{SECRET}@127.0.0.1:1/pool")
    for attempt in (open_store, run_migration):
        with pytest.raises(StorageError, match=r"me@127\.0\.0\.1:1/pool") as caught:
            await attempt(url)
        assert SECRET not in f"{caught.value!r} {caught.value.remedy}"
    assert SECRET not in repr(url)


async def test_a_database_that_is_missing_says_how_to_make_it(where: PostgresUrl) -> None:
    with pytest.raises(StorageError, match="does not exist") as caught:
        await open_store(postgres_server().url("nowhere"))
    assert "createdb" in caught.value.remedy
    with pytest.raises(StorageError, match="does not exist") as caught:
        await open_store(PostgresUrl(where.url.set(username="stranger")))
    assert "user and password" in caught.value.remedy


async def test_no_command_line_shows_the_password(
    where: PostgresUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = PostgresUrl(where.url.set(password=SECRET))
    seen: list[str] = []
    start = asyncio.create_subprocess_exec

    async def started(*words: str, **more: object) -> asyncio.subprocess.Process:
        seen.extend(words)
        return await start(*words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    await run_migration(secret)
    assert "--postgres" in seen
    assert SECRET not in " ".join(seen)


async def test_control_serves_from_postgres(where: PostgresUrl, tmp_path: Path) -> None:
    record, database = tmp_path / "run/control.json", tmp_path / "other/data/pool.db"
    environment = os.environ | {
        "GPUPOOL_HOME": str(tmp_path),
        "GPUPOOL_CONTROL_PORT": "0",
        "GPUPOOL_DATABASE_URL": where.dsn,
    }
    command = [sys.executable, "-m", "gpupool", "control", "serve"]
    first = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.DEVNULL)
    try:
        await eventually(record.exists, what="control")
        other = environment | {"GPUPOOL_HOME": f"{tmp_path}/other"}
        second = await asyncio.create_subprocess_exec(
            *command, env=other, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, told = await second.communicate()
        assert second.returncode == ConflictError.exit_code
        assert b"The keys of this control are not those of http://" in told
        assert not database.exists()
        assert not (tmp_path / "data/pool.db").exists()
        first.terminate()
        assert await first.wait() == 0
    finally:
        if first.returncode is None:
            first.kill()
            await first.wait()


def test_the_doctor_looks_at_postgres(where: PostgresUrl, tmp_path: Path) -> None:
    home, server = Home(tmp_path), postgres_server()

    def found(url: str) -> tuple[str, str]:
        [finding] = check_database(home, in_use=False, url=url)
        return finding.verdict.value, f"{finding.measured} {finding.why}"

    verdict, told = found(where.dsn)
    assert (verdict, told.startswith("postgresql://gpupool@local/")) == ("pass", True)
    assert found(server.new_database().url.render_as_string())[1].count("empty") == 1
    for url in (server.url("nowhere").dsn, f"mysql://me:{SECRET}@host/pool"):
        verdict, told = found(url)
        assert (verdict, SECRET in told) == ("fail", False)


def test_a_bundle_hides_the_password_wherever_it_stands(tmp_path: Path) -> None:
    url = f"postgresql://me:{SECRET}@host/pool"
    assert known_secrets(Home(tmp_path), {"GPUPOOL_DATABASE_URL": url}) == {url, SECRET}


@pytest.mark.parametrize(
    ("options", "statement", "words"),
    [
        ("&sslmode=verify-full&sslrootcert=/nowhere", "SELECT 1", "sslrootcert"),
        ("", "ALTER DATABASE {0} SET default_transaction_read_only = on", "standby"),
        ("", "ALTER ROLE limited CONNECTION LIMIT 0", "limit of this user"),
        ("", "ALTER ROLE limited CONNECTION LIMIT -1", "own the database"),
    ],
)
async def test_what_a_server_refuses_has_its_remedy(
    where: PostgresUrl, options: str, statement: str, words: str
) -> None:
    server = postgres_server()
    server.sql("DROP ROLE IF EXISTS limited")
    server.sql("CREATE ROLE limited LOGIN")
    server.sql(statement.format(where.url.database))
    url = f"postgresql://{'limited' if 'ROLE' in statement else 'gpupool'}@/{where.url.database}?host={server.folder}"
    with pytest.raises(StorageError) as caught:
        await write_once(parse_postgres_url(url + options))
    assert words in caught.value.remedy


async def write_once(where: PostgresUrl) -> None:
    store = await open_store(where)
    try:
        async with store.write() as writer:
            await writer.emit(an_event())
    finally:
        await store.close()
