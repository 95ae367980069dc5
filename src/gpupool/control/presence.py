"""Presence: this control says that it lives and whom it has heard, and learns the same of the others."""

from typing import Final

import structlog

from gpupool.control.followers import PREFIX, Followers
from gpupool.control.pool import Pool
from gpupool.core.errors import StorageError
from gpupool.core.keys import MAX_SKEW_SECONDS
from gpupool.fleet.ports.sharing import Replica, Sharing

SAY_SECONDS: Final = 2.0
_FORGET_SECONDS: Final = 60.0
_OVERLAP_SECONDS: Final = 5.0
"""How far each look goes back behind the last one: what others note takes a moment to be seen."""
_LOG = structlog.get_logger(__name__)


class Presence:
    """One control among others."""

    def __init__(self, pool: Pool, sharing: Sharing, me: Replica, followers: Followers) -> None:
        self._pool, self._sharing, self._me, self._followers = pool, sharing, me, followers
        self._seconds = min(SAY_SECONDS, pool.silence_seconds / 6)
        self._forgot = pool.clock.monotonic()
        self._looked: float | None = None

    async def run(self) -> None:
        """Say and learn until the pool closes."""
        while not self._pool.changes.closed:
            try:
                await self.say()
            except StorageError as error:
                _LOG.warning("presence.not_told", error=error.message)
            await self._pool.changes.until(lambda: False, self._seconds)

    async def say(self) -> None:
        """Say once, and learn."""
        pool, sharing, me = self._pool, self._sharing, self._me.instance_id
        await sharing.renew(self._me)
        fresh, unlinked = pool.links.news()
        fresh |= {PREFIX + name: False for name in self._followers.news()}
        if fresh:
            await sharing.note_heard(me, fresh)
        if unlinked:
            await sharing.note_unlinked(me, unlinked)
        began = pool.clock.monotonic()
        within = None if self._looked is None else began - self._looked + _OVERLAP_SECONDS
        heard = await sharing.heard(within)
        self._looked = began
        pool.links.learn(heard, me)
        self._followers.learn(heard)
        now = pool.clock.monotonic()
        if now - self._forgot >= _FORGET_SECONDS:
            self._forgot = now
            # The next look is a whole one: whoever only stopped listening is in no other.
            self._looked = None
            await sharing.forget_nonces(int(pool.clock.now().timestamp()) - 2 * MAX_SKEW_SECONDS)
