"""Connections to servers: one request at a time on each, the answer recognised, everything else a fault.

A link knows nothing of retries. It tells its owner that an answer is whole, or that the connection broke and why.
"""

import asyncio
import ssl
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from gpupool.recompute.proxy.framing import FRAME_MOST, HEADER, KEEP_ALIVE, FrameError, frame_end
from gpupool.recompute.proxy.nodes import Kind, Node
from gpupool.recompute.proxy.tls import TlsConnection
from gpupool.recompute.tls_words import of_asking

if TYPE_CHECKING:
    from gpupool.recompute.proxy.exchanges import Attempt


class LinkOwner(Protocol):
    """Who hears of answers and breaks."""

    def answered(self, link: "Link", attempt: "Attempt", reply: object, *, reusable: bool) -> None:
        """Take a whole answer to the link's attempt."""
        ...

    def broke(self, link: "Link", attempt: "Attempt", why: str) -> None:
        """Take that the link ended while its attempt waited."""
        ...


class Link(asyncio.Protocol):
    """An open connection to a node."""

    kind: ClassVar[Kind]
    transport: asyncio.Transport

    def __init__(self, node: Node, owner: LinkOwner) -> None:
        self.node = node
        self.attempt: Attempt | None = None
        self.uses = 0
        self.idle_since = 0.0
        self._fresh = True
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count among the node's connections."""
        self.transport = cast("asyncio.Transport", transport)
        self.node.open.add(self)

    def remember_session(self) -> None:
        """Let the node's next TLS connection resume this one's session; it is known once something was read."""
        transport, self._fresh = self.transport, False
        if isinstance(transport, TlsConnection) and transport.session is not None:
            self.node.session = (transport.context, transport.session)

    def ask(self, attempt: "Attempt", data: bytes) -> None:
        """Send a request; its answer, or the break, goes to the owner."""
        self.attempt = attempt
        self.uses += 1
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner if an answer was awaited, else just leave."""
        self._leave()
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self._owner.broke(self, attempt, _end_words(exc))

    def close(self) -> None:
        """End the connection without telling anybody; what was asked is given up."""
        self.attempt = None
        self._leave()
        self.transport.abort()

    def _leave(self) -> None:
        self.node.open.discard(self)
        if self in self.node.idle:
            self.node.idle.remove(self)

    def _spoil(self, why: str) -> None:
        """Tell of an answer that is none, and end."""
        attempt, self.attempt = self.attempt, None
        self.close()
        if attempt is not None:
            self._owner.broke(self, attempt, why)


def _end_words(exc: Exception | None) -> str:
    if isinstance(exc, ssl.SSLError):
        return f"it {of_asking(exc).what}"
    return "it closed the connection" if exc is None else str(exc) or "reset"


class FrameLink(Link):
    """To a Gigahorse server (or a proxy before some)."""

    kind: ClassVar[Kind] = Kind.FRAMES

    def __init__(self, node: Node, owner: LinkOwner) -> None:
        super().__init__(node, owner)
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        """Collect one frame; what nobody asked for ends the connection."""
        if self._buffer:
            self._buffer += data
            data = bytes(self._buffer)
        # An empty frame is a sign of life, not an answer.
        while data[:HEADER] == KEEP_ALIVE:
            data = data[HEADER:]
        try:
            end = frame_end(data, FRAME_MOST)
        except FrameError:
            self._spoil("it answered with what is no frame")
            return
        attempt = self.attempt
        if attempt is None:
            if data:
                self.close()
            return
        if end == 0 or len(data) < end:
            self._buffer[:] = data
            return
        self._buffer.clear()
        if self._fresh:
            self.remember_session()
        whole = len(data) == end
        self.attempt = None
        self._owner.answered(self, attempt, data if whole else data[:end], reusable=whole)
