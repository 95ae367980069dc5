"""Carries the connections of Gigahorse clients to a server of theirs on this machine, byte for byte.

Such a server serves 2 x threads + 10 connections at a time, silent ones included, and leaves the others waiting
without a word. So no more than that are passed on; who says nothing for a minute, or finds no place in time, is closed.
"""

import asyncio
from typing import Final

import structlog

from gpupool.recompute.server.capacity import usable_cores

log = structlog.get_logger(__name__)
HOST: Final = "127.0.0.1"
WAIT_SECONDS: Final = 10.0
"""For a free place; harvesters give up after 5 to 20."""
SILENT_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 2.0
_CHUNK: Final = 1 << 16


def places(threads: int) -> int:
    """Return how many connections the server takes with ``-r threads``; 0 or less: all cores."""
    return 2 * (threads if threads > 0 else usable_cores()) + 10


class Passage:
    """The way to one program."""

    def __init__(self, port: int, most: int) -> None:
        """``most``: connections at once."""
        self._port = port
        self._places = asyncio.Semaphore(most)
        self.open = 0
        self.refused = 0

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of one accepted connection."""
        reader = asyncio.StreamReader(limit=_CHUNK)
        return asyncio.StreamReaderProtocol(reader, self._carry)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            self._refuse(writer, "every place is taken")
            return
        self.open += 1
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                up_reader, up_writer = await asyncio.open_connection(HOST, self._port)
            await _join((reader, writer), (up_reader, up_writer))
        except (OSError, TimeoutError):
            self._refuse(writer, "the program takes no connection")
        finally:
            self.open -= 1
            self._places.release()
            writer.close()

    def _refuse(self, writer: asyncio.StreamWriter, why: str) -> None:
        self.refused += 1
        peer = writer.get_extra_info("peername")
        log.warning("frame_client_refused", client=peer[0] if peer else None, reason=why)
        writer.close()


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _join(one: Stream, other: Stream) -> None:
    """Copy both ways until the second side has ended, or both are silent for too long."""
    there = asyncio.create_task(_copy(one[0], other[1]))
    back = asyncio.create_task(_copy(other[0], one[1]))
    try:
        # A client may close its half and still wait for the answer; a server that ends has nothing more to say.
        await asyncio.wait({back})
    finally:
        for task in (there, back):
            task.cancel()
        await asyncio.wait({there, back})
        other[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            async with asyncio.timeout(SILENT_SECONDS):
                piece = await reader.read(_CHUNK)
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except (OSError, TimeoutError):
        writer.close()
