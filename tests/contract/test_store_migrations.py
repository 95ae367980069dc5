"""Each step of the schema up, down and up again on both databases, with rows that must come through."""

from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, event, text

from gpupool.store.migrate import SCRIPTS
from gpupool.store.postgres import PostgresDatabase
from gpupool.store.schema import REVISIONS
from gpupool.store.tables import METADATA
from postgres_server import postgres_server

Steps = Callable[[Connection], None]
NODE = (
    "INSERT INTO nodes (id, name, public_key, address, state, locked, draining, runtimes, boot_id, joined_at, seen_at)"
    " VALUES ('{id}', '{name}', '{name} key', 'h', '{state}', {no}, {no}, '[]', '', '2026-01-01', '2026-01-01')"
)


async def on_sqlite(steps: Steps, folder: Path) -> None:
    engine = create_engine(f"sqlite:///{folder / 'pool.db'}", connect_args={"isolation_level": None})
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.connect() as connection:
        steps(connection)
    engine.dispose()


async def on_postgres(steps: Steps, _: Path) -> None:
    database = PostgresDatabase(postgres_server().new_database(), busy_seconds=5)
    try:
        async with database.writers.connect() as connection:
            await connection.run_sync(steps)
    finally:
        await database.writers.dispose()
        await database.readers.dispose()


ON = {"sqlite": on_sqlite, "postgres": on_postgres}


def go(connection: Connection, to: str, *, down: bool = False) -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    (command.downgrade if down else command.upgrade)(config, to)
    connection.commit()


def differences(connection: Connection) -> list[object]:
    # PostgreSQL has no equality of JSON, by which alembic would compare its defaults.
    options = {"compare_server_default": connection.dialect.name == "sqlite"}
    context = MigrationContext.configure(connection, opts=options)
    found: list[object] = compare_metadata(context, METADATA)
    connection.rollback()
    return found


def names(connection: Connection) -> list[str]:
    found = [row[0] for row in connection.execute(text("SELECT name FROM nodes ORDER BY name"))]
    connection.rollback()
    return found


def keep(connection: Connection, node_id: str, name: str, state: str = "ready") -> None:
    no = "0" if connection.dialect.name == "sqlite" else "false"
    connection.execute(text(NODE.format(id=node_id, name=name, state=state, no=no)))
    connection.execute(text("INSERT INTO commands VALUES (:node, 1, 'stop', '{}')"), {"node": node_id})
    connection.commit()


@pytest.mark.parametrize("where", ON)
async def test_every_step_goes_up_down_and_up_again(tmp_path: Path, where: str) -> None:
    def steps(connection: Connection) -> None:
        go(connection, REVISIONS[0])
        keep(connection, "node-1", "old")
        for revision in REVISIONS[1:]:
            go(connection, revision)
            go(connection, "-1", down=True)
            go(connection, revision)
        assert differences(connection) == []
        go(connection, REVISIONS[0], down=True)
        assert names(connection) == ["old"]
        go(connection, "head")
        assert differences(connection) == []
        assert names(connection) == ["old"]

    await ON[where](steps, tmp_path)


@pytest.mark.parametrize("where", ON)
async def test_a_removed_node_is_an_unreachable_one_to_the_first_schema(tmp_path: Path, where: str) -> None:
    def steps(connection: Connection) -> None:
        go(connection, "0002")
        keep(connection, "node-1", "gpu-1", "removed")
        keep(connection, "node-2", "gpu-1")
        go(connection, "0001", down=True)
        rows = connection.execute(text("SELECT id, name, state FROM nodes ORDER BY id")).all()
        assert [tuple(row) for row in rows] == [
            ("node-1", "node-1", "unreachable"),
            ("node-2", "gpu-1", "ready"),
        ]
        connection.rollback()
        kept = connection.execute(text("SELECT count(*) FROM commands")).scalar_one()
        assert kept == 2

    await ON[where](steps, tmp_path)
