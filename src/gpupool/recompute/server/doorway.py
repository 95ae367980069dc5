"""Accepts connections and looks at their first bytes before anything parses them.

Port 11989 means three things to programs in the field: TLS, HTTP and Gigahorse's own frames. The bytes are only
peeked at, so that the TLS or HTTP layer still finds them all. Who speaks something this server does not answer is
closed at once, with one line that tells its operator what to do; an HTTP parser would leave both sides guessing.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final

import structlog

from gpupool.recompute.tls_words import ASK_OVER_TLS, of_answering

log = structlog.get_logger(__name__)
_POLL_SECONDS: Final = 0.05
"""Between looks at a connection that has sent only a part of its first four bytes."""
MOST_SILENT: Final = 1024
"""Connections that have not said what they speak."""
_GIGAHORSE_ADVICE: Final = (
    "This server answers gpupool's clients, the harvester shim and Bladebit-compressed plots. Point a Gigahorse"
    " harvester at a Gigahorse chia_recompute_server, or at a gpupool recompute proxy that has one as a node."
)


class Speech(Enum):
    """What the first bytes of a connection are."""

    TLS = "tls"
    FRAME = "frame"
    HTTP = "http"
    UNKNOWN = "unknown"


def recognise(head: bytes) -> Speech | None:
    """Return what a connection that began with ``head`` speaks; None while there are too few bytes to tell.

    TLS comes first: the beginning of a short ClientHello would also be a legal frame length.
    """
    if head[:2] == b"\x16\x03":
        return Speech.TLS
    if len(head) < 4:
        return None
    if head[3] == 0:
        return Speech.FRAME
    return Speech.HTTP if head[:1].isalpha() and head.isascii() else Speech.UNKNOWN


class Doorway:
    """Takes the connections of one listening socket and hands them to protocols; closes the socket at the end."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: Callable[[], ssl.SSLContext] | None,
        *,
        head_seconds: float,
        has_room: Callable[[], bool],
        frames: Callable[[], asyncio.Protocol] | None = None,
        most_silent: int = MOST_SILENT,
    ) -> None:
        """``has_room`` may close an idle connection for the next one.

        ``most_silent``: how many may be open that have not said what they speak; the oldest makes room for the next.

        ``tls``: gives what a connection begins with, asked for each, as certificates are renewed.

        ``frames``: makes protocols for Gigahorse clients; without it they are turned away.
        """
        self._listener, self._protocol, self._tls = listener, protocol, tls
        self._head_seconds, self._has_room, self._frames = head_seconds, has_room, frames
        self._most_silent = most_silent
        self._undecided: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(self._listener)
                except OSError as error:
                    # Out of files or memory: what is open goes on, and new ones wait in the kernel.
                    log.warning("accept_failed", reason=error.strerror)
                    self._drop_silent()
                    await asyncio.sleep(0.1)
                    continue
                self._admit(connection, str(address[0]))
                # Who makes room is closed before the next one is let in.
                await asyncio.sleep(0)
        finally:
            for task in self._undecided:
                task.cancel()
            await asyncio.gather(*self._undecided, return_exceptions=True)
            self._listener.close()

    def _admit(self, connection: socket.socket, client: str) -> None:
        if not self._has_room():
            log.warning("too_many_connections", client=client)
            connection.close()
            return
        if len(self._undecided) >= self._most_silent:
            self._drop_silent()
        task = asyncio.create_task(self._receive(connection, client))
        self._undecided[task] = None
        task.add_done_callback(self._undecided.pop)

    def _drop_silent(self) -> None:
        """Close the connection that has said nothing for longest."""
        for oldest in self._undecided:
            oldest.cancel()
            break

    async def _receive(self, connection: socket.socket, client: str) -> None:
        handed_over = False
        try:
            async with asyncio.timeout(self._head_seconds):
                speech = await self._listen(connection)
            if speech is Speech.FRAME and self._frames is not None:
                handed_over = True
                await asyncio.get_running_loop().connect_accepted_socket(self._frames, connection)
            elif speech is not None and self._may_pass(speech, client):
                handed_over = True
                await self._hand_over(connection, client)
        except (TimeoutError, ConnectionError):
            # It sent nothing that could be judged, and nobody is waiting for an answer.
            log.debug("silent_connection_closed", client=client)
        finally:
            if not handed_over:
                _close(connection)

    async def _listen(self, connection: socket.socket) -> Speech | None:
        """Return what the client speaks; None where it leaves without a word."""
        await _readable(connection)
        while True:
            head = connection.recv(4, socket.MSG_PEEK)
            speech = recognise(head)
            if speech is not None or not head:
                return speech
            await asyncio.sleep(_POLL_SECONDS)

    def _may_pass(self, speech: Speech, client: str) -> bool:
        expected = Speech.HTTP if self._tls is None else Speech.TLS
        if speech is expected:
            return True
        if speech is Speech.FRAME:
            log.warning("gigahorse_client_refused", client=client, what_to_do=_GIGAHORSE_ADVICE)
        elif speech is Speech.TLS:
            advice = "This server has no TLS. Give it --tls-cert and --tls-key, or use http:// in the client."
            log.warning("tls_client_refused", client=client, what_to_do=advice)
        elif speech is Speech.HTTP:
            advice = f"This server takes TLS only. {ASK_OVER_TLS}"
            log.warning("plain_client_refused", client=client, what_to_do=advice)
        else:
            advice = "It speaks neither HTTP nor TLS; find out what runs there."
            log.warning("unknown_client_refused", client=client, what_to_do=advice)
        return False

    async def _hand_over(self, connection: socket.socket, client: str) -> None:
        loop = asyncio.get_running_loop()
        tls = None if self._tls is None else self._tls()
        seconds = None if tls is None else self._head_seconds
        try:
            await loop.connect_accepted_socket(
                self._protocol, connection, ssl=tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:
            words = of_answering(error)
            log.warning(
                "tls_handshake_failed", client=client, reason=f"it {words.what}", what_to_do=words.remedy
            )


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection.fileno())


def _close(connection: socket.socket) -> None:
    """Close in good order: what was read leaves a FIN behind, what was not would make a reset of it."""
    with suppress(OSError):
        connection.recv(1 << 16)
    connection.close()
