"""What a market does by itself as time passes: bounties, launches that come to nothing, billing, samples of use."""

import asyncio
from typing import Final

import structlog

from gpupool.core.errors import StorageError
from gpupool.market.billing import bill_due
from gpupool.market.bounties import Bounties
from gpupool.market.expiring import expire
from gpupool.market.instances import LaunchProof
from gpupool.market.metering import SAMPLE_SECONDS, Meter
from gpupool.market.state import Market

PERIOD: Final = 5.0
_LOG: Final = structlog.get_logger(__name__)


class Tender:
    """Looks every few seconds at what is due."""

    def __init__(self, market: Market, meter: Meter, proof: LaunchProof, period: float = PERIOD) -> None:
        self._market, self._meter, self._proof, self._period = market, meter, proof, period
        self._bounties = Bounties(market)
        self._sampled = float("-inf")

    async def run(self) -> None:
        """Work until cancelled; books that cannot be written are tried again."""
        while True:
            try:
                await self.tend()
            except StorageError as error:
                _LOG.warning("market.waits", error=error.message, remedy=error.remedy)
            await asyncio.sleep(self._period)

    async def tend(self) -> None:
        """Do what is due now."""
        now = self._market.clock.monotonic()
        if now - self._sampled >= SAMPLE_SECONDS:
            self._meter.sample()
            self._sampled = now
        await self._bounties.tend()
        await expire(self._market, self._proof)
        await bill_due(self._market)
