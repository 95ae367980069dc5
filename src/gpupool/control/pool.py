"""What the routes, the agent link and the reconciler share, and the one way in which they change the state.

Every change goes through `Pool.change`: one transaction, its events in it, and after the commit a signal to those
who wait. A view cached under `Changes.count` is therefore never older than the last commit. Where nobody can tell
whether a change was kept (the connection broke at its commit), or another control may have written, views are read anew.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from gpupool.catalog import Catalog
from gpupool.contracts.agent_link import SILENCE_LIMIT_SECONDS
from gpupool.control.answers import Answers
from gpupool.control.changes import Changes
from gpupool.control.http.nonces import Nonces
from gpupool.control.http.signatures import SignatureCheck
from gpupool.control.links import Links
from gpupool.control.logdesk import LogDesk
from gpupool.control.relaying import Relay
from gpupool.control.returning import Returns
from gpupool.control.snapshot import Snapshot, load_snapshot
from gpupool.core import failpoints
from gpupool.core.clock import Clock
from gpupool.core.errors import LeaseLostError, StorageError
from gpupool.core.ids import new_id
from gpupool.fleet.events import Event
from gpupool.fleet.ports.bus import News
from gpupool.fleet.ports.sharing import Sharing
from gpupool.fleet.ports.store import Reader, Store, Writer, Written
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
    events: list[Event] = field(default_factory=list)
    """Written together as its last part; their kinds name its fail points."""
    woken: set[str] = field(default_factory=set)

    async def emit(self, kind: str, subject: str, **data: Fact) -> None:
        """Write an event, at the end of the transaction."""
        if self.by is not None:
            data = {**data, "by": self.by}
        self.events.append(Event(kind=kind, subject=subject, at=self.at, data=data))

    async def finish(self) -> None:
        """Write the events: the last thing before the commit."""
        if self.events:
            self.last_seq = await self.writer.emit_all(self.events)

    def reach(self, side: Literal["before", "after"]) -> None:
        """Pass the fail points on one side of its commit."""
        for kind in [event.kind for event in self.events] or ["quiet"]:
            failpoints.reach(f"control.{kind}.{side}")

    async def command(self, node_id: str, kind: str, payload: Mapping[str, Any]) -> None:
        """Queue a command; the node's stream is woken after the commit."""
        await self.writer.add_command(node_id, kind, payload)
        self.woken.add(node_id)


@dataclass(frozen=True, slots=True)
class _Own:
    """What a change of this process has put."""

    count: int
    """`Changes.count` after it."""
    seq: int
    """Of its last event; 0 where it had none."""
    events: int
    written: Written


def _joined(seq: int, changes: Iterable[_Own]) -> int | None:
    """Return the seq after changes that follow on ``seq``; None where events of others came in between."""
    for change in changes:
        if change.events and change.seq != seq + change.events:
            return None
        seq += change.events
    return seq


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
        self.returns = Returns(self)
        self.node_keys: dict[str, str] = {}
        """Public keys by node id; a node never changes its key."""
        self.catalog = Catalog.load()
        self.strategy: Strategy = strategy or CheapestFit(
            frozenset(model.short_ref for model in self.catalog)
        )
        self.random = random.Random()
        self.awaited: set[str] = set()
        """Nodes of the last run with live placements, not heard yet: until then the feed is not complete."""
        self.epoch: int | None = None
        """Since when this control leads, where it has a lease; None where it follows, or is alone without one."""
        self.sharing: Sharing | None = None
        """What it shares with the other controls on its database; None where there can be none."""
        self.nonces: Nonces | None = None
        """Which signed requests the others have taken."""
        self.relay: Relay | None = None
        """Tells others at once what was committed here; None where nobody is to be told."""
        self.store_trouble: str | None = None
        """Why the last change could not be kept; None where it was."""
        self._snapshot: tuple[int, Snapshot] | None = None
        self._own: list[_Own] = []
        """Own changes since the snapshot, in the order of their commits."""
        self._committing = 0
        self._loading = asyncio.Lock()

    @asynccontextmanager
    async def change(self, by: str | None = None) -> AsyncIterator[Change]:
        """Open a transaction; after its commit wake the waiters, if anything was recorded. ``by``: who asks for it."""
        uncertain, woken = False, set[str]()
        try:
            async with self.store.write() as writer:
                change = Change(writer, self.clock.now(), by, woken=woken)
                yield change
                await change.finish()
                change.reach("before")
                uncertain = True
                self._committing += 1
            uncertain = False
            self._committing -= 1
        except StorageError as error:
            self.store_trouble = error.message
            uncertain = True
            raise
        finally:
            if uncertain:
                self._committing = 0
                self._own.clear()
                self.changes.announce()
                self._wake(woken)
        self.store_trouble = None
        change.reach("after")
        if change.last_seq is not None or change.woken:
            self.changes.announce(change.last_seq)
        own = _Own(self.changes.count, change.last_seq or 0, len(change.events), change.writer.written)
        self._own.append(own)
        self._wake(woken)
        self._tell_others(change)

    @asynccontextmanager
    async def decide(self) -> AsyncIterator[Change]:
        """Open a transaction in which the leader decides something; LeaseLostError where another leads by now."""
        async with self.change() as change:
            await self.check_lease(change.writer)
            yield change

    async def check_lease(self, reader: Reader) -> None:
        """Raise LeaseLostError unless this control leads, or is the only one there can be."""
        if self.epoch is not None:
            await reader.check_lease(self.instance_id, self.epoch)
        elif self.sharing is not None:
            raise LeaseLostError(f"{self.instance_id} does not lead.")

    def _tell_others(self, change: Change) -> None:
        if self.relay is None or not (change.events or change.woken):
            return
        seq = change.last_seq or 0
        first = seq - len(change.events) + 1
        events = tuple(replace(event, seq=first + place) for place, event in enumerate(change.events))
        nodes = tuple(sorted(change.woken))
        self.relay.send(News(origin=self.instance_id, seq=seq, events=events, nodes=nodes))

    def _wake(self, node_ids: Iterable[str]) -> None:
        for node_id in node_ids:
            self.links.wake(node_id)

    async def snapshot(self) -> Snapshot:
        """Return the whole state as last committed; read from the store only where others may have changed it."""
        known = self._up_to_date()
        if known is not None:
            return known
        async with self._loading:
            known = self._up_to_date()
            if known is not None:
                return known
            count = self.changes.count
            self._own.clear()
            async with self.store.read() as reader:
                snapshot = await load_snapshot(reader, self.links.leaving())
                waiting = await reader.with_commands()
            self._snapshot = (count, snapshot)
            if snapshot.seq > self.changes.seq and not self._committing:
                # Kept without our knowing; followers wait for this number, and nodes perhaps for a command.
                self.changes.announce(snapshot.seq)
                self._wake(waiting)
            return snapshot

    def _up_to_date(self) -> Snapshot | None:
        """Return the snapshot with what was put since; None where there is none, or not all of that is known."""
        if self._snapshot is None:
            return None
        count, snapshot = self._snapshot
        if count == self.changes.count:
            return snapshot
        if not {one.count for one in self._own}.issuperset(range(count + 1, self.changes.count + 1)):
            return None
        # What was on its way while the snapshot was read may be in it already.
        news = [one for one in self._own if not 0 < one.seq <= snapshot.seq]
        seq = _joined(snapshot.seq, news)
        if seq is None:
            return None
        self._own.clear()
        snapshot = snapshot.after([one.written for one in news], seq, self.links.leaving())
        self._snapshot = (self.changes.count, snapshot)
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
