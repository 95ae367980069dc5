"""What the alert desk knows, as it is kept in the store: whatever has changed is written again until it is there.

While the database fails, the desk works on from memory; so even trouble with the database itself is told.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog

from gpupool.control.alerts.alarms import Alarms
from gpupool.control.pool import Change, Pool
from gpupool.core.errors import StorageError
from gpupool.core.ids import new_id
from gpupool.fleet.alarms import Alarm, Key, Silence

MOST_EVENTS: Final = 1000
"""Events that wait for a database that fails; beyond that the oldest are dropped."""
_LOG = structlog.get_logger(__name__)


class Saving:
    """Writes what has changed."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._dirty: set[Key] = set()
        self._events: list[tuple[str, str, dict[str, str | None]]] = []

    def touch(self, key: Key) -> None:
        """Note that an alarm has changed, or was forgotten."""
        self._dirty.add(key)

    def event(self, kind: str, subject: str, **data: str | None) -> None:
        """Note something that happened."""
        self._events.append((kind, subject, data))
        del self._events[:-MOST_EVENTS]

    async def flush(self, alarms: Alarms, expired: Sequence[Silence] = ()) -> str | None:
        """Write what has changed, and drop what has expired; return why that failed, None where it did not."""
        if not (self._dirty or self._events or expired):
            return None
        dirty, self._dirty = self._dirty, set()
        events, self._events = self._events, []
        try:
            async with self._pool.decide() as change:
                for key in dirty:
                    await _write(change, key, alarms.get(key))
                for silence in expired:
                    await change.writer.drop_silence(silence.id)
                for kind, subject, data in events:
                    await change.emit(kind, subject, **data)
        except StorageError as error:
            self._dirty |= dirty
            self._events = [*events, *self._events][-MOST_EVENTS:]
            return error.message
        return None

    async def probe(self) -> None:
        """Write something: whether the database takes changes again shows only so."""
        with suppress(StorageError):
            async with self._pool.decide() as change:
                await change.writer.first_time("alerts", new_id("ev"))


async def _write(change: Change, key: Key, alarm: Alarm | None) -> None:
    if alarm is None:
        await change.writer.forget_alarm(key)
    else:
        await change.writer.put_alarm(alarm)
