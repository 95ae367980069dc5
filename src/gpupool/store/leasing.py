"""The lease inside a transaction: a leader that was paused must not write what another leader decides by now.

Read under the writers' lock, so whoever takes over afterwards sees what this transaction wrote before it decides
anything itself.
"""

from typing import Final

from sqlalchemy import delete, insert, select

from gpupool.core.errors import LeaseLostError
from gpupool.store.codecs import AnyRow
from gpupool.store.tables import LEASES

LEADER: Final = "leader"
LEASE: Final = select(LEASES.c.holder, LEASES.c.epoch).where(LEASES.c.name == LEADER)
DROP_LEASE: Final = delete(LEASES).where(LEASES.c.name == LEADER)
MAKE_LEASE: Final = insert(LEASES)


def decode_lease(row: AnyRow) -> tuple[str, int]:
    """Return holder and epoch."""
    return row[0], row[1]


def check(held: tuple[str, int] | None, holder: str, epoch: int) -> None:
    """Raise LeaseLostError unless the lease is that holder's, of that epoch."""
    if held != (holder, epoch):
        who = f"{held[0]} leads since" if held else "nobody holds the lease after"
        raise LeaseLostError(f"{holder} does not lead any more: {who} epoch {held[1] if held else epoch}.")
