"""A client that speaks Gigahorse frames: each goes on as it came, and so does each answer, in order.

A client may close its sending half after a request and still get its answer, as the original programs allow. Empty
frames are signs of life; they go nowhere, for some servers take them as a fault.
"""

from typing import ClassVar

import structlog

from gpupool.recompute.proxy.answers import REMEDIES
from gpupool.recompute.proxy.clients import Client
from gpupool.recompute.proxy.exchanges import Exchange, FrameExchange
from gpupool.recompute.proxy.framing import HEADER, KEEP_ALIVE, FrameError, Speech, frame_end
from gpupool.recompute.proxy.nodes import Kind

log = structlog.get_logger(__name__)


class FrameClient(Client):
    """Takes frames one after another; one is under way at a time."""

    speech: ClassVar[Speech] = Speech.FRAMES
    exchange: Exchange | None = None
    _buffer = b""
    _no_more = False
    _paused = False

    @property
    def busy(self) -> bool:
        """Whether an answer is owed."""
        return self.exchange is not None

    def data_received(self, data: bytes) -> None:
        """Collect, and begin with the next whole frame."""
        self._buffer = self._buffer + data if self._buffer else data
        if self.exchange is None:
            self._next()
        elif len(self._buffer) > self.core.settings.frame_limit and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def _next(self) -> None:
        data = self._buffer
        while data[:HEADER] == KEEP_ALIVE:
            data = data[HEADER:]
        try:
            end = frame_end(data, self.core.settings.frame_limit)
        except FrameError as error:
            log.warning("frame_refused", client=self.peer, why=str(error))
            self._buffer = b""
            self.abort()
            return
        now = self.core.clock()
        if end == 0 or len(data) < end:
            if bool(data) != self.partial or not data:
                self.since, self.partial = now, bool(data)
            self._buffer = data
            if self._no_more:
                self.close()
            return
        self._buffer = data[end:]
        self._begin(data[:end] if self._buffer else data, now)

    def _begin(self, frame: bytes, now: float) -> None:
        core = self.core
        refusal = core.border.refuses_frames(self.transport)
        if refusal is not None:
            log.warning("frames_refused", client=self.peer, why=refusal.detail, remedy=REMEDIES[refusal.code])
            self._buffer = b""
            self.close()
            return
        if core.rate is not None and not core.rate.admits(self.peer, now):
            self._buffer = b""
            self.close()
            return
        if not core.directory.may_carry(Kind.FRAMES):
            core.tallies.refused(self.peer, now)
            log.warning(
                "gigahorse_client_refused",
                client=self.peer,
                why="this proxy has no Gigahorse server; its frames cannot be answered by any other",
                remedy="Name a Gigahorse server with -n HOST[:PORT], or let this harvester use a client of ours.",
            )
            self._buffer = b""
            self.close()
            return
        self.partial = False
        exchange = FrameExchange(self, core.next_id(), now, now + core.settings.deadline_seconds, frame)
        self.exchange = exchange
        core.frames.submit(exchange)

    def reply(self, exchange: Exchange, answer: bytes) -> None:
        """Send the answer and go on with what came meanwhile."""
        self.exchange = None
        self.transport.write(answer)
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        if self._buffer:
            self._next()
        elif self._no_more or self.core.parting:
            self.close()
        else:
            self.since = self.core.clock()

    def give_up(self, exchange: Exchange, why: str) -> None:
        """There is no error in this protocol: the client is told by the end of the connection."""
        self.exchange = None
        self.abort()

    def eof_received(self) -> bool:
        """Keep the connection for the answers that are owed."""
        self._no_more = True
        return self.exchange is not None

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is under way for it."""
        super().connection_lost(exc)
        if self.exchange is not None:
            self.core.frames.cancel(self.exchange)
            self.exchange = None
