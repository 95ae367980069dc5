"""What other controls have committed, as it reaches this one: over the bus at once, else from the events table.

Events are taken in the order of their numbers, each once. Over the bus they may come twice, late, in another order or
not at all; so what follows on what is known is taken from there, and at any gap, and every half second, the store is
asked. Writers commit one after another, so what the store shows up to a number is all there will ever be below it.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from gpupool.control.learning import learn
from gpupool.control.pool import Pool
from gpupool.core.errors import StorageError, UnavailableError
from gpupool.fleet.events import Event
from gpupool.fleet.ports.bus import Bus, News

POLL_SECONDS: Final = 0.5
"""How late a change is seen where the bus says nothing."""
RETRY_SECONDS: Final = 1.0
COMMAND_SECONDS: Final = 5.0
"""How late a command without an event is seen where the bus says nothing."""
_PART: Final = 1000
_LOG = structlog.get_logger(__name__)


class Following:
    """Takes in what others have changed."""

    def __init__(self, pool: Pool, bus: Bus, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._pool, self._bus, self._poll_seconds = pool, bus, poll_seconds
        self._seq: int | None = None
        self._arrived: list[News] = []
        self._some = asyncio.Event()
        self._looked_for_commands = -COMMAND_SECONDS

    async def run(self) -> None:
        """Follow until the pool closes."""
        listening = asyncio.create_task(self._listen(), name="bus")
        try:
            while not self._pool.changes.closed:
                await self._wait()
                try:
                    await self.take()
                except StorageError as error:
                    _LOG.warning("following.waits", error=error.message)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._poll_seconds):
                await self._some.wait()
        except TimeoutError:
            return

    async def _listen(self) -> None:
        lost = False
        while True:
            try:
                async with self._bus.subscribe(self._pool.instance_id) as news:
                    if lost:
                        _LOG.info("bus.back")
                    lost = False
                    async for one in news:
                        self.hear(one)
            except UnavailableError as error:
                if not lost:
                    _LOG.warning("bus.lost", error=error.message)
                lost = True
            await asyncio.sleep(RETRY_SECONDS)

    def hear(self, news: News) -> None:
        """Note what has come over the bus."""
        self._arrived.append(news)
        self._some.set()

    async def take(self) -> None:
        """Take in what has come, and what the store has beyond it."""
        self._some.clear()
        arrived, self._arrived = self._arrived, []
        if self._seq is None:
            async with self._pool.store.read() as reader:
                self._seq = await reader.last_event_seq()
            self._pool.changes.announce(self._seq)
        followed = sum([self._follow(news) for news in sorted(arrived, key=lambda news: news.seq)])
        if not arrived or followed < len(arrived):
            await self._read_on()
        await self._wake(arrived)

    def _follow(self, news: News) -> bool:
        """Take in news that follows on what is known; False where the store has to be asked."""
        known = self._seq or 0
        if news.seq <= known:
            return True
        if not news.events or news.events[0].seq != known + 1:
            return False
        self._take_in(news.events)
        return True

    async def _read_on(self) -> None:
        while True:
            async with self._pool.store.read() as reader:
                events = await reader.events(after=self._seq or 0, limit=_PART)
            self._take_in(events)
            if len(events) < _PART:
                return

    def _take_in(self, events: Sequence[Event]) -> None:
        for event in events:
            learn(self._pool, event)
        if events:
            self._seq = events[-1].seq
            if self._seq > self._pool.changes.seq:
                self._pool.changes.announce(self._seq)

    async def _wake(self, arrived: Sequence[News]) -> None:
        """Let the command streams here look for what others have queued."""
        foreign = [news for news in arrived if news.origin != self._pool.instance_id]
        named = {node for news in foreign for node in news.nodes or ()}
        now = self._pool.clock.monotonic()
        overdue = now - self._looked_for_commands >= COMMAND_SECONDS
        if overdue or any(news.nodes is None for news in foreign):
            async with self._pool.store.read() as reader:
                named |= await reader.with_commands()
            self._looked_for_commands = now
        for node in named:
            self._pool.links.wake(node)
