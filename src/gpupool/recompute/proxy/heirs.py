"""Who takes over the clients of a proxy that stops, so that kept connections outlive it.

A connection between two requests is nothing but its descriptor: whoever gets that can go on with it, and the client
sees neither an end nor a pause. A TLS connection has its keys in this process and cannot go: it is closed instead.
"""

import asyncio
from typing import TYPE_CHECKING, Protocol

from gpupool.recompute.proxy.clients import Doorman
from gpupool.recompute.proxy.framing import Speech

if TYPE_CHECKING:
    from gpupool.recompute.proxy.proxying import ProxyCore


class Heir(Protocol):
    """Takes connections."""

    def take(self, speech: Speech, transport: asyncio.Transport) -> bool:
        """Take a connection between two requests; False where it can't be given now (it is asked again)."""
        ...


def descriptor_of(transport: asyncio.Transport) -> int | None:
    """Return the descriptor of a connection with nothing left to send; None while there is something."""
    if transport.is_closing() or transport.get_write_buffer_size():
        return None
    return int(transport.get_extra_info("socket").fileno())


class Adopted(Doorman):
    """A connection that another proxy has served: what it speaks is known where it has spoken."""

    def __init__(self, core: "ProxyCore", speech: Speech) -> None:
        super().__init__(core)
        self._speech = speech

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Go on where the other proxy ended."""
        super().connection_made(transport)
        if self.transport.is_closing() or self._speech is Speech.UNDECIDED:
            return
        http = self._speech is Speech.HTTP
        client = self.core.http_client() if http else self.core.frame_client()
        client.partial = False
        self.hand_over(client)
