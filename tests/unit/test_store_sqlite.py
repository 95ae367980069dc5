"""SQLite is set up so that nothing acknowledged is lost, and every list call finds its rows through an index."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import BindParameter, ClauseElement, Delete, Insert, Select, Update, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import visitors

from fleet_samples import an_event, new_database
from gpupool.fleet.events import Event
from gpupool.store import claiming, codecs, sql_reader, sql_writer
from gpupool.store.codecs import AnyRow
from gpupool.store.sql_store import SqlStore
from gpupool.store.sqlite import SqliteDatabase
from gpupool.store.upserts import Upserts, upserts

SETTINGS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
STATEMENTS: dict[str, ClauseElement] = {
    **{
        name: value
        for name, value in vars(sql_reader).items()
        if isinstance(value, (Select, Delete, Insert, Update))
    },
    **{f"_PLACEMENTS{names}": value for names, value in sql_reader._PLACEMENTS.items()},
    **{f"_CLAIMS{names}": value for names, value in sql_reader._CLAIMS.items()},
    **{
        name: value
        for name, value in vars(sql_writer).items()
        if isinstance(value, (Select, Delete, Insert, Update))
    },
    **{field.name: getattr(upserts("sqlite"), field.name) for field in fields(Upserts)},
    **{f"TAKE {mode}": value for mode, value in claiming.TAKE.items()},
}


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = SqlStore(SqliteDatabase(new_database(tmp_path)))
    yield opened
    await opened.close()


async def test_writer_and_readers_are_set_up_for_safety(store: SqlStore) -> None:
    async with store.write() as writer, store.read() as view:
        for user in (writer, view):
            for name, wanted in SETTINGS.items():
                found = await user._connection.execute(text(f"PRAGMA {name}"))
                assert found.scalar_one() == wanted, name
        assert (await view._connection.execute(text("PRAGMA query_only"))).scalar_one() == 1


ONCE_AT_START = {"_CLEAR_WORKLOADS"}
"""Looks at every workload, once in a process's life; an index would cost each later write."""


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - ONCE_AT_START))
async def test_no_statement_walks_a_whole_table_or_sorts(store: SqlStore, name: str) -> None:
    statement = STATEMENTS[name]
    lists = {
        bind.key for bind in visitors.iterate(statement) if isinstance(bind, BindParameter) and bind.expanding
    }
    if lists:
        statement = statement.params({key: ["one", "two"] for key in lists})
    dialect = sqlite.dialect(paramstyle="named")
    named = str(statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True}))
    parameters = dict.fromkeys(re.findall(r":(\w+)", named), 1)
    async with store.write() as writer:
        rows = await writer._connection.execute(text(f"EXPLAIN QUERY PLAN {named}"), parameters)
        plan = [row.detail for row in rows]
    assert [line for line in plan if "TEMP B-TREE" in line] == []
    assert [line for line in plan if line.startswith("SCAN") and "USING" not in line] == []


async def test_decoding_a_long_list_lets_others_run(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = 0
    decoded_in: list[int] = []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def decode_event(row: AnyRow) -> Event:
        decoded_in.append(turn)
        return codecs.decode_event(row)

    monkeypatch.setattr(sql_reader, "decode_event", decode_event)
    other = asyncio.create_task(count_turns())
    async with store.write() as writer:
        for _ in range(1600):
            await writer.emit(an_event())
        await writer.events(limit=5000)
    other.cancel()
    assert len(decoded_in) == 1600
    assert max(decoded_in.count(turn) for turn in set(decoded_in)) <= 500
