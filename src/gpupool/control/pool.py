"""What the routes, the agent link and the reconciler share, and the one way in which they change the state.

Every change goes through `Pool.change`: one transaction, its events in it, and after the commit a signal to those
who wait. A view cached under `Changes.count` is therefore never older than the last commit. Where nobody can tell
whether a change was kept (the connection broke at its commit), or another control may have written, views are read anew.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from gpupool.catalog import Catalog
from gpupool.contracts.agent_link import SILENCE_LIMIT_SECONDS
from gpupool.control.answers import Answers
from gpupool.control.changes import Changes
from gpupool.control.http.signatures import SignatureCheck
from gpupool.control.links import Links
from gpupool.control.logdesk import LogDesk
from gpupool.control.snapshot import Snapshot, load_snapshot
from gpupool.core import failpoints
from gpupool.core.clock import Clock
from gpupool.core.errors import StorageError
from gpupool.core.ids import new_id
from gpupool.fleet.events import Event
from gpupool.fleet.ports.store import Store, Writer
from gpupool.scheduling.cheapest import CheapestFit
from gpupool.scheduling.port import Strategy

Fact = str | int | float | bool | None


@dataclass(slots=True)
class Change:
    """One transaction under way."""

    writer: Writer
    at: datetime
    """The one moment that all its records carry."""
    by: str | None = None
    """Who asked for it, as its events say; None where nobody did and the pool acts by itself."""
    last_seq: int | None = None
    kinds: list[str] = field(default_factory=list)
    """Kinds of its events, which name its fail points."""
    woken: set[str] = field(default_factory=set)

    async def emit(self, kind: str, subject: str, **data: Fact) -> None:
        """Write an event."""
        if self.by is not None:
            data = {**data, "by": self.by}
        self.kinds.append(kind)
        self.last_seq = await self.writer.emit(Event(kind=kind, subject=subject, at=self.at, data=data))

    def reach(self, side: Literal["before", "after"]) -> None:
        """Pass the fail points on one side of its commit."""
        for kind in self.kinds or ["quiet"]:
            failpoints.reach(f"control.{kind}.{side}")

    async def command(self, node_id: str, kind: str, payload: Mapping[str, Any]) -> None:
        """Queue a command; the node's stream is woken after the commit."""
        await self.writer.add_command(node_id, kind, payload)
        self.woken.add(node_id)


class Pool:
    """The shared state of one control process."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        instance_id: str = "",
        strategy: Strategy | None = None,
        silence_seconds: float = SILENCE_LIMIT_SECONDS,
    ) -> None:
        self.store, self.clock = store, clock
        self.silence_seconds = silence_seconds
        """A node not heard for longer is unreachable."""
        self.instance_id = instance_id or new_id("inst")
        self.started_at = clock.now()
        self.started = clock.monotonic()
        self.changes = Changes()
        self.links = Links(clock)
        self.logs = LogDesk()
        self.answers = Answers(clock, self.changes)
        self.signatures = SignatureCheck(clock)
        self.node_keys: dict[str, str] = {}
        """Public keys by node id; a node never changes its key."""
        self.catalog = Catalog.load()
        self.strategy: Strategy = strategy or CheapestFit(
            frozenset(model.short_ref for model in self.catalog)
        )
        self.random = random.Random()
        self.awaited: set[str] = set()
        """Nodes of the last run with live placements, not heard yet: until then the feed is not complete."""
        self.store_trouble: str | None = None
        """Why the last change could not be kept; None where it was."""
        self._snapshot: tuple[int, Snapshot] | None = None
        self._loading = asyncio.Lock()

    @asynccontextmanager
    async def change(self, by: str | None = None) -> AsyncIterator[Change]:
        """Open a transaction; after its commit wake the waiters, if anything was recorded. ``by``: who asks for it."""
        uncertain = False
        try:
            async with self.store.write() as writer:
                change = Change(writer, self.clock.now(), by)
                yield change
                change.reach("before")
                uncertain = True
            uncertain = False
        except StorageError as error:
            self.store_trouble = error.message
            uncertain = True
            raise
        finally:
            if uncertain:
                self.changes.announce()
        self.store_trouble = None
        change.reach("after")
        if change.last_seq is not None or change.woken:
            self.changes.announce(change.last_seq)
            for node_id in change.woken:
                self.links.wake(node_id)

    async def snapshot(self) -> Snapshot:
        """Return the whole state as last committed; read from the store once a change."""
        cached = self._snapshot
        if cached is not None and cached[0] == self.changes.count:
            return cached[1]
        async with self._loading:
            cached = self._snapshot
            if cached is not None and cached[0] == self.changes.count:
                return cached[1]
            count = self.changes.count
            async with self.store.read() as reader:
                snapshot = await load_snapshot(reader, self.links.leaving())
            self._snapshot = (count, snapshot)
            if snapshot.seq > self.changes.seq:
                # Kept without our knowing; followers wait for this number.
                self.changes.announce(snapshot.seq)
            return snapshot

    def forget_node(self, node_id: str) -> None:
        """Forget what is kept in memory of a node that was removed: its key, its link, that it is waited for."""
        self.node_keys.pop(node_id, None)
        self.awaited.discard(node_id)
        self.links.forget(node_id)

    def close(self) -> None:
        """End every wait and every stream: the process is stopping."""
        self.changes.close()
        self.links.end_all()
