"""Log requests in flight: a reader waits here for the text that a node sends back.

Nothing is kept: a request that nobody waits for any more is unknown, and its answer is refused.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gpupool.core.errors import NotFoundError


class LogDesk:
    """Matches answers with those who asked."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, asyncio.Future[bytes]]] = {}

    @contextmanager
    def expect(self, request_id: str, node_id: str) -> Iterator[asyncio.Future[bytes]]:
        """Expect one answer of one node while the block lasts."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = (node_id, future)
        try:
            yield future
        finally:
            del self._waiting[request_id]

    def answer(self, request_id: str, node_id: str, text: bytes) -> None:
        """Hand an answer to who asked; raise NotFoundError when nobody asks this of this node (any more)."""
        expected, future = self._waiting.get(request_id, (None, None))
        if expected != node_id or future is None:
            raise NotFoundError(
                f"Nobody waits for the logs {request_id}.", remedy="Drop them: the reader has left."
            )
        if not future.done():
            future.set_result(text)
