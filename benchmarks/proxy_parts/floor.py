"""The least that a proxy in Python can be: what event loop and sockets alone cost, as a floor to compare with.

It picks the less busy node and passes bytes on. No failover, no limits, no log, no probes, no head of its own: not
for use.

    python benchmarks/proxy_parts/floor.py PORT frames|http KEPT HOST:PORT [HOST:PORT ...]

KEPT is how many idle connections to a node are kept for the next request (0: each request makes one).
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import cast

import uvloop


class Node:
    """A server with its idle connections."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self.busy = 0
        self.idle: deque[Upstream] = deque()


def end_of_frame(held: bytes) -> int:
    """Return where the first frame ends, 0 while that is not known."""
    return 4 + int.from_bytes(held[:4], "little") if len(held) >= 4 else 0


def end_of_http(held: bytes) -> int:
    """Return where the first message ends, 0 while that is not known; its head must name the length of its body."""
    head = held.find(b"\r\n\r\n")
    if head < 0:
        return 0
    at = held.find(b"Content-Length: ", 0, head) + 16
    return head + 4 + int(held[at : held.find(b"\r", at)])


class Messages(asyncio.Protocol):
    """Collects bytes until a message is whole."""

    transport: asyncio.Transport
    end_of: Callable[[bytes], int] = staticmethod(end_of_frame)

    def __init__(self) -> None:
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Collect, and tell of a whole message."""
        held = self._held + data if self._held else data
        if 0 < (end := self.end_of(held)) <= len(held):
            self._held = held[end:]
            self.whole(held[:end])
        else:
            self._held = held

    def whole(self, message: bytes) -> None:
        """Take a message."""
        raise NotImplementedError


class Upstream(Messages):
    """To a node: one request at a time."""

    answered: Callable[[bytes], None] | None = None

    def whole(self, message: bytes) -> None:
        """Give the answer on."""
        answered, self.answered = self.answered, None
        if answered is not None:
            answered(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that there will be no answer."""
        if self.answered is not None:
            self.answered(b"")


class Downstream(Messages):
    """From a client."""

    def __init__(self, nodes: list[Node], kept: int) -> None:
        super().__init__()
        self._nodes, self._kept = nodes, kept

    def whole(self, message: bytes) -> None:
        """Send it to the less busy node."""
        node = min(self._nodes, key=lambda node: node.busy)
        node.busy += 1
        while node.idle:
            upstream = node.idle.pop()
            if not upstream.transport.is_closing():
                self._send(node, upstream, message)
                return
        task = asyncio.ensure_future(self._connect(node, message))
        task.add_done_callback(lambda done: done.exception())

    async def _connect(self, node: Node, message: bytes) -> None:
        _, upstream = await asyncio.get_running_loop().create_connection(Upstream, *node.address)
        self._send(node, upstream, message)

    def _send(self, node: Node, upstream: Upstream, message: bytes) -> None:
        def answered(reply: bytes) -> None:
            node.busy -= 1
            if reply and len(node.idle) < self._kept:
                node.idle.append(upstream)
            else:
                upstream.transport.close()
            if reply and not self.transport.is_closing():
                self.transport.write(reply)
            elif not reply:
                self.transport.close()

        upstream.answered = answered
        upstream.transport.write(message)


async def main() -> None:
    """Serve until killed."""
    port, kind, kept, *addresses = sys.argv[1:]
    if kind == "http":
        Messages.end_of = staticmethod(end_of_http)
    nodes = [Node(address) for address in addresses]
    server = await asyncio.get_running_loop().create_server(
        lambda: Downstream(nodes, int(kept)), "127.0.0.1", int(port), backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
