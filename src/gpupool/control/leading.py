"""Leadership: of all controls on one database, one decides (places, drains, raises alarms); all others wait for its end.

The lease has a short life by the database's clock. Whoever finds it expired takes it over with a new epoch, and each
transaction of a leader checks under the writers' lock that the epoch is still its own. So a leader that was paused
can't decide anything after its time, whatever it believes. A leader that only lost the database works on: it can do no
harm, and it is the one to tell people of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from gpupool.control.pool import Pool
from gpupool.core.errors import LeaseLostError, StorageError
from gpupool.fleet.ports.sharing import Sharing

RENEW_SECONDS: Final = 2.0
ASK_SECONDS: Final = 0.5
"""How often one that follows looks whether the lease is to be had."""
GRACE_SECONDS: Final = 5.0
_LOG = structlog.get_logger(__name__)


class Leading:
    """Keeps the lease, or waits for it, and has the leader's work done meanwhile."""

    def __init__(
        self,
        pool: Pool,
        sharing: Sharing,
        work: Callable[[], Awaitable[None]],
        *,
        renew_seconds: float = RENEW_SECONDS,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        """``work`` runs as long as this control leads; it ends by itself once that is refused."""
        self._pool, self._sharing, self._work = pool, sharing, work
        self._renew_seconds, self._ask_seconds = renew_seconds, ask_seconds
        self._working: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Lead or follow until the pool closes."""
        try:
            while not self._pool.changes.closed:
                await self.look()
                await self._wait()
        finally:
            await self._step_down()

    async def look(self) -> None:
        """Take the lease or renew it, and do what follows from that."""
        try:
            epoch = await self._sharing.lead(self._pool.instance_id)
        except StorageError as error:
            _LOG.warning("lease.not_renewed", error=error.message)
            return
        if self._working is not None and (epoch != self._pool.epoch or self._working.done()):
            await self._step_down()
        if epoch is not None and self._working is None:
            await self._step_up(epoch)

    async def _wait(self) -> None:
        closing = asyncio.ensure_future(self._pool.changes.until(lambda: False, self._seconds()))
        waiting = {closing} if self._working is None else {closing, self._working}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)

    def _seconds(self) -> float:
        return self._ask_seconds if self._working is None else self._renew_seconds

    async def _step_up(self, epoch: int) -> None:
        pool = self._pool
        pool.epoch = epoch
        # Those who were linked to a leader that died need their time to come here.
        pool.links.excuse(pool.clock.monotonic())
        try:
            async with pool.decide() as change:
                await change.emit("control.leads", pool.instance_id, epoch=epoch)
        except (StorageError, LeaseLostError) as error:
            _LOG.warning("lease.not_used", error=error.message)
            pool.epoch = None
            return
        _LOG.info("control.leads", epoch=epoch)
        self._working = asyncio.ensure_future(self._work())

    async def _step_down(self) -> None:
        working, self._working = self._working, None
        if working is None:
            return
        if self._pool.changes.closed:
            # The work ends by itself, and in good order.
            await asyncio.wait({working}, timeout=GRACE_SECONDS)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        if not self._pool.changes.closed:
            _LOG.warning("control.follows", was=self._pool.epoch)
        self._pool.epoch = None
