"""The relay: what this control has committed goes over the bus, in its order and without holding up anybody.

Whatever does not get through is no loss: the other controls find it in the events table.
"""

import asyncio
from collections import deque
from typing import Final

import structlog

from gpupool.core.errors import UnavailableError
from gpupool.fleet.ports.bus import Bus, News

MOST_WAITING: Final = 10_000
PAUSE_SECONDS: Final = 1.0
"""How long a bus that cannot be reached is left alone."""
_LOG = structlog.get_logger(__name__)


class Relay:
    """Sends news one after another."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._waiting: deque[News] = deque(maxlen=MOST_WAITING)
        self._some = asyncio.Event()
        self._closed = False
        self.works = True
        """Whether the bus took the last piece of news."""

    def send(self, news: News) -> None:
        """Have news sent; returns at once."""
        self._waiting.append(news)
        self._some.set()

    def close(self) -> None:
        """End once what waits was sent."""
        self._closed = True
        self._some.set()

    async def run(self) -> None:
        """Send until closed."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                if not await self._sent(self._waiting.popleft()):
                    # What has waited meanwhile is old by the time the bus is back.
                    self._waiting.clear()
                    if not self._closed:
                        await asyncio.sleep(PAUSE_SECONDS)
            if self._closed:
                return

    async def _sent(self, news: News) -> bool:
        try:
            await self._bus.publish(news)
        except UnavailableError as error:
            if self.works:
                _LOG.warning("bus.lost", error=error.message)
            self.works = False
        else:
            if not self.works:
                _LOG.info("bus.back")
            self.works = True
        return self.works
