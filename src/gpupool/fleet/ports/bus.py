"""The bus port: how controls on one database hear at once what one of them has committed.

A fast path and never the only copy. What comes over it may be lost, come twice, late or in another order; the events
table is what counts, and whoever misses a number reads on there. Publishing therefore happens after the commit.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from gpupool.fleet.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one commit brought."""

    origin: str
    """Instance id of the control that committed."""
    seq: int = 0
    """Number of its last event; 0 where it had none."""
    events: tuple[Event, ...] | None = ()
    """Its events, in their order; None where the way was too narrow for them."""
    nodes: tuple[str, ...] | None = ()
    """Nodes for which a command was queued; None where they were too many to name."""


class Bus(Protocol):
    """Carries news between controls."""

    async def publish(self, news: News) -> None:
        """Send news to every subscriber; UnavailableError where the bus cannot be reached."""
        ...

    def subscribe(self, reader: str) -> AbstractAsyncContextManager[AsyncIterator[News]]:
        """Return the news from now on, and what ``reader`` had not taken when it was cut off, where that is kept.

        The iterator raises UnavailableError where the bus is lost.
        """
        ...

    async def close(self) -> None:
        """Give back every connection."""
        ...
