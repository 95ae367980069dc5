"""What one control among several on a database runs, besides serving: presence, news of the others, leadership."""

import asyncio
import hashlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from gpupool import __version__
from gpupool.control.alerts.desk import AlertDesk
from gpupool.control.following import Following
from gpupool.control.http.guard import Tokens
from gpupool.control.http.nonces import Nonces
from gpupool.control.joining import forget_sessions
from gpupool.control.leading import Leading
from gpupool.control.pool import Pool
from gpupool.control.presence import Presence
from gpupool.control.reconciling import Reconciler, Tireless, supervise
from gpupool.control.relaying import Relay
from gpupool.core.home import Home
from gpupool.fleet.ports.bus import Bus
from gpupool.fleet.ports.sharing import Entry, Replica, Sharing

_EVERY = 1_000_000


def keys_digest(home: Home, tokens: Tokens) -> str:
    """Return what tells whether two controls have the same keys, without telling the keys."""
    told = b"\0".join(
        [
            home.seal_key.read_bytes().strip(),
            *(token.encode() for token in (tokens.operator, tokens.service, tokens.join)),
        ]
    )
    return hashlib.sha256(b"gpupool controls share\0" + told).hexdigest()


def replica_at(instance_id: str, host: str, port: int, peer_url: str = "") -> Replica:
    """Return this control as others see it; ``peer_url`` replaces the address it listens on."""
    name = socket.gethostname()
    shown = name if host in {"0.0.0.0", "::"} else f"[{host}]" if ":" in host else host  # noqa: S104
    return Replica(
        instance_id=instance_id, url=peer_url or f"http://{shown}:{port}", host=name, version=__version__
    )


async def alone_in(pool: Pool, desk: AlertDesk, bus: Bus) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return the work of a control that is the only one on its database: it leads from the start."""
    async with pool.change() as change:
        pool.epoch = await change.writer.seize_lease(pool.instance_id)
    await forget_sessions(pool)
    # Others may read along, so what is committed is told even by one that is alone.
    relay = pool.relay = Relay(bus)

    async def work() -> None:
        relaying = asyncio.create_task(relay.run(), name="relay")
        await _all(Reconciler(pool), desk)
        relay.close()
        await relaying

    return work


class Company:
    """One control among others. It counts as living from `enter` to `leave`."""

    def __init__(self, pool: Pool, sharing: Sharing, bus: Bus, me: Replica, desk: AlertDesk) -> None:
        self._pool, self._sharing, self._me, self._desk = pool, sharing, me, desk
        self._relay = Relay(bus)
        pool.sharing, pool.nonces, pool.relay = sharing, Nonces(sharing), self._relay
        self._following = Following(pool, bus)

    async def enter(self, keys: str, predecessor: str | None) -> None:
        """Start among the others; where none lives, begin as a pool that starts.

        Raises ConflictError where another control lives that has other keys, or the same instance id.
        """
        pool = self._pool
        entered = await self._sharing.enter(
            Entry(me=self._me, keys=keys, predecessor=predecessor, settle_seconds=pool.silence_seconds)
        )
        if entered.first:
            await forget_sessions(pool)
        elif entered.settling:
            await _await_nodes(pool)

    async def run(self) -> None:
        """Work until the pool closes."""
        presence = Presence(self._pool, self._sharing, self._me, self._desk.followers)
        leading = Leading(self._pool, self._sharing, self._lead)
        relaying = asyncio.create_task(self._relay.run(), name="relay")
        await _all(presence, self._following, leading)
        self._relay.close()
        await relaying

    async def _lead(self) -> None:
        """Do the leader's work until one part of it hears that another leads."""
        work = [asyncio.create_task(supervise(one)) for one in (Reconciler(self._pool), self._desk)]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            if self._pool.changes.closed:
                await asyncio.wait(work)
        finally:
            for one in work:
                one.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def leave(self) -> None:
        """Stop counting as living, so that another control takes the lease at once."""
        await self._sharing.leave(self._me)


async def _all(*workers: Tireless) -> None:
    await asyncio.gather(*(supervise(worker) for worker in workers))


async def _await_nodes(pool: Pool) -> None:
    """Wait for the nodes for which the first control waits: the feed is not complete before."""
    async with pool.store.read() as reader:
        live = {placement.node_id for placement in await reader.placements(live=True, limit=_EVERY)}
        pool.awaited.update(node.id for node in await reader.nodes() if not node.session and node.id in live)
