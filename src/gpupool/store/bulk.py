"""Statements for many rows at once: a fleet that comes back after a restart would wait for one at a time.

Parts are small enough for the number of parameters that every database takes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import bindparam, func, insert, select, update

from gpupool.fleet.events import Event
from gpupool.fleet.nodes import Node
from gpupool.store.codecs import AnyRow
from gpupool.store.tables import EVENTS, NODES, SEEN_KEYS

T = TypeVar("T")
PART: Final = 250

EMIT_ALL: Final = insert(EVENTS).returning(EVENTS.c.seq)
NOTE_NODE: Final = (
    update(NODES)
    .where(NODES.c.id == bindparam("of"))
    .values({name: bindparam(f"new_{name}") for name in ("state", "session", "boot_id", "seen_at")})
)
REMEMBER: Final = insert(SEEN_KEYS)
_IN_SCOPES: Final = SEEN_KEYS.c.scope.in_(bindparam("scopes", expanding=True))
SEEN: Final = select(SEEN_KEYS.c.scope, SEEN_KEYS.c.key).where(
    _IN_SCOPES, SEEN_KEYS.c.key.in_(bindparam("keys", expanding=True))
)
LAST_PLACES: Final = (
    select(SEEN_KEYS.c.scope, func.max(SEEN_KEYS.c.position)).where(_IN_SCOPES).group_by(SEEN_KEYS.c.scope)
)


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the values, a part at a time."""
    for first in range(0, len(values), PART):
        yield values[first : first + PART]


def pair(row: AnyRow) -> tuple[Any, Any]:
    """Return a row of two columns."""
    return row[0], row[1]


def event_row(event: Event) -> Mapping[str, Any]:
    """Return the columns of an event that has no number yet."""
    data = dict(event.data)
    return {
        "kind": event.kind,
        "subject": event.subject,
        "at": event.at,
        "data": data,
        "actor": data.get("by"),
    }


def note_of(node: Node) -> Mapping[str, Any]:
    """Return the parameters of `NOTE_NODE`."""
    return {
        "of": node.id,
        "new_state": node.state.value,
        "new_session": node.session,
        "new_boot_id": node.boot_id,
        "new_seen_at": node.seen_at,
    }
