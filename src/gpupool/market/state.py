"""A market at work: its records in memory, and the one way in which they change.

A change is decided on what is in memory, written to the books, and only then seen by anybody and told to the miners; so
nothing is acknowledged or broadcast that a crash could take back. Changes come one after another.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gpupool.catalog import Catalog
from gpupool.core.clock import Clock
from gpupool.core.finishing import to_its_end
from gpupool.market.keeping import Books, Record
from gpupool.market.records import Chute, Earning, Gpu, Image, Instance, Job, Launch, Use


@dataclass(frozen=True, slots=True)
class News:
    """Something to tell the miners."""

    reason: str
    data: Mapping[str, Any]
    hotkey: str | None = None
    """Only this miner; None: everybody."""


@dataclass(slots=True)
class Change:
    """One change under way."""

    at: float
    """Seconds since 1970: the one moment that all its records carry."""
    kept: dict[tuple[type, str], Record] = field(default_factory=dict)
    dropped: dict[tuple[type, str], Record] = field(default_factory=dict)
    earned: list[Earning] = field(default_factory=list)
    news: list[News] = field(default_factory=list)

    def put(self, record: Record) -> None:
        """Make or replace a record."""
        key = (type(record), record.id)
        self.dropped.pop(key, None)
        self.kept[key] = record

    def drop(self, record: Record) -> None:
        """Let go of a record."""
        key = (type(record), record.id)
        self.kept.pop(key, None)
        self.dropped[key] = record

    def tell(self, reason: str, hotkey: str | None = None, /, **data: Any) -> None:
        """Tell the miners, or one of them, once this is kept."""
        self.news.append(News(reason, data, hotkey))


class Market:
    """All records by id, and who is told of changes."""

    def __init__(self, books: Books, clock: Clock, catalog: Catalog | None = None) -> None:
        self.clock = clock
        self.catalog = catalog or Catalog.load()
        self.images: dict[str, Image] = {}
        self.chutes: dict[str, Chute] = {}
        self.gpus: dict[str, Gpu] = {}
        self.launches: dict[str, Launch] = {}
        self.instances: dict[str, Instance] = {}
        self.jobs: dict[str, Job] = {}
        self.uses: dict[str, Use] = {}
        self.listeners: list[Callable[[News], None]] = []
        """Called after each change that is kept; they must not fail."""
        self.books = books
        self._shelves: dict[type, dict[str, Any]] = {
            Image: self.images,
            Chute: self.chutes,
            Gpu: self.gpus,
            Launch: self.launches,
            Instance: self.instances,
            Job: self.jobs,
            Use: self.uses,
        }
        self._turn = asyncio.Lock()

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self.clock.now().timestamp()

    async def load(self) -> None:
        """Take up what was kept."""
        for record in await self.books.open():
            self._shelves[type(record)][record.id] = record

    @asynccontextmanager
    async def change(self) -> AsyncIterator[Change]:
        """Open a change: it is kept when the block ends, and nothing of it when the block raises."""
        async with self._turn:
            change = Change(self.now)
            yield change
            # Memory and books must stay the same, whoever leaves meanwhile.
            await to_its_end(self._keep(change))

    async def _keep(self, change: Change) -> None:
        if change.kept or change.dropped or change.earned:
            await self.books.write(change.kept.values(), change.dropped.values(), change.earned)
        for (kind, key), record in change.kept.items():
            self._shelves[kind][key] = record
        for kind, key in change.dropped:
            self._shelves[kind].pop(key, None)
        for news in change.news:
            for listener in self.listeners:
                listener(news)

    def instances_of(self, chute_id: str) -> list[Instance]:
        """Return a chute's instances."""
        return [instance for instance in self.instances.values() if instance.chute_id == chute_id]

    def open_launches_of(self, chute_id: str) -> list[Launch]:
        """Return the launches of a chute of which something may still come."""
        return [
            launch
            for launch in self.launches.values()
            if launch.chute_id == chute_id and launch.state.open and launch.expires_at > self.now
        ]
