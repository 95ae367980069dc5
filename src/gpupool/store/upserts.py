"""Statements that insert or, where the key is there already, do something else: each database's dialect has its own.

Built once for each dialect that is used; a dialect that is not used is not loaded either.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import Executable, Table, bindparam, func, select

from gpupool.store.tables import (
    ALARMS,
    API_TOKENS,
    DEVICES,
    HOTKEYS,
    JOBS,
    JOIN_TOKENS,
    NODES,
    PLACEMENTS,
    SEEN_KEYS,
    SILENCES,
    WORKLOADS,
)

_scope: Final = bindparam("scope", type_=SEEN_KEYS.c.scope.type)


@dataclass(frozen=True, slots=True)
class Upserts:
    """The statements of one dialect; parameters are the columns."""

    put_node: Executable
    put_device: Executable
    put_workload: Executable
    put_placement: Executable
    put_job: Executable
    put_join_token: Executable
    put_api_token: Executable
    put_hotkey: Executable
    put_alarm: Executable
    put_silence: Executable
    remember: Executable
    """Numbers ``key`` within ``scope``: one row with the number, none where it was there already."""


@cache
def upserts(dialect: str) -> Upserts:
    """Return the statements for a dialect: ``sqlite`` or ``postgresql``."""
    insert: Callable[[Table], Any]
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert

    def upsert(table: Table, *untouched: str) -> Executable:
        statement = insert(table)
        changed = {
            column.name: statement.excluded[column.name]
            for column in table.c
            if not column.primary_key and column.name not in untouched
        }
        upserted: Executable = statement.on_conflict_do_update(
            index_elements=list(table.primary_key.c), set_=changed
        )
        return upserted

    return Upserts(
        put_node=upsert(NODES, "command_seq"),
        put_device=upsert(DEVICES),
        put_workload=upsert(WORKLOADS),
        put_placement=upsert(PLACEMENTS),
        put_job=upsert(JOBS),
        put_join_token=upsert(JOIN_TOKENS),
        put_api_token=upsert(API_TOKENS),
        put_hotkey=upsert(HOTKEYS),
        put_alarm=upsert(ALARMS),
        put_silence=upsert(SILENCES),
        remember=_remember(insert),
    )


def _remember(insert: Callable[[Table], Any]) -> Executable:
    next_position = func.coalesce(func.max(SEEN_KEYS.c.position), 0) + 1
    key = bindparam("key", type_=SEEN_KEYS.c.key.type)
    numbered = select(_scope, next_position, key).where(SEEN_KEYS.c.scope == _scope)
    statement: Executable = (
        insert(SEEN_KEYS)
        .from_select(("scope", "position", "key"), numbered)
        .on_conflict_do_nothing(index_elements=["scope", "key"])
        .returning(SEEN_KEYS.c.position)
    )
    return statement
