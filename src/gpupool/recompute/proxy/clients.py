"""Client connections: the first bytes decide what one speaks, then the fitting protocol takes over.

What every client may cost is limited here: how many there are, how long a request may take to arrive, how long one
may stay without asking. A sweep looks at the clocks, so that no request pays for a timer.
"""

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final, cast

import structlog

from gpupool.recompute.proxy.framing import FRAMES, HTTP, TLS, Speech, sniff
from gpupool.recompute.proxy.local_socket import is_local
from gpupool.recompute.proxy.tls import TlsConnection
from gpupool.recompute.tls_words import of_answering

if TYPE_CHECKING:
    from gpupool.recompute.proxy.proxying import ProxyCore

LOCAL_PEER: Final = "unix"
"""Name of every client of the Unix socket."""
SPEAK_SECONDS: Final = 1.0
"""How long one who has just connected may still begin to speak while the proxy stops."""
log = structlog.get_logger(__name__)


class Client(asyncio.Protocol):
    """What all client connections have in common; `transport` is there from the first byte on."""

    transport: asyncio.Transport
    speech: ClassVar[Speech] = Speech.UNDECIDED

    def __init__(self, core: "ProxyCore") -> None:
        self.core = core
        self.peer = "-"
        self.since = core.clock()
        """When it became idle, or its present request began to arrive."""
        self.partial = True
        """Part of a request is here, or the connection is new."""

    @property
    def busy(self) -> bool:
        """Whether an answer is owed."""
        return False

    def overdue(self, now: float) -> bool:
        """Tell whether it has been waited for too long."""
        settings = self.core.settings
        limit = settings.head_seconds if self.partial else settings.idle_seconds
        return not self.busy and now - self.since > limit

    def close(self) -> None:
        """End the connection once what was written is sent."""
        self.transport.close()

    def abort(self) -> None:
        """End the connection now."""
        self.transport.abort()

    @property
    def at_rest(self) -> bool:
        """Whether it is between two requests: nothing of one is here, and no answer is owed."""
        return not (self.busy or self.partial)

    def leave(self) -> None:
        """The proxy stops: go to its heir, or be closed where there is none; not in the middle of a request."""
        heir = self.core.heir
        if not self.at_rest:
            return
        if heir is None or self.transport.get_extra_info("ssl_object") is not None:
            self.close()
        elif heir.take(self.speech, self.transport):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self.core.clients.discard(self)


class Doorman(Client):
    """Waits for the first four bytes."""

    def __init__(self, core: "ProxyCore") -> None:
        super().__init__(core)
        self._first = b""
        self._tls: TlsConnection | None = None

    @property
    def at_rest(self) -> bool:
        """Whether it has said nothing yet; where nobody takes it over, it gets a moment to speak."""
        patient = self.core.heir is not None or self.core.clock() - self.since > SPEAK_SECONDS
        shaking = self._tls is not None and not self._tls.ready
        return not self._first and patient and not shaking

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the client, or turn it away where there are too many."""
        self.transport = cast("asyncio.Transport", transport)
        if not self.core.has_place():
            self.core.turned_away()
            self.transport.abort()
            return
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = name[0]
        elif is_local(transport.get_extra_info("socket")):
            self.peer = LOCAL_PEER
        self.core.clients.add(self)

    def data_received(self, data: bytes) -> None:
        """Decide, and hand over."""
        first = self._first = self._first + data
        speech = sniff(first)
        if speech is FRAMES:
            self.hand_over(self.core.frame_client())
        elif speech is HTTP:
            self.hand_over(self.core.http_client())
        elif speech is TLS:
            self._begin_tls(first)

    def _begin_tls(self, first: bytes) -> None:
        """Put TLS below; what it decrypts is looked at anew."""
        context = self.core.border.context
        if context is None or self._tls is not None:
            log.warning(
                "tls_refused",
                client=self.peer,
                remedy="This proxy has no TLS: give it --tls-cert and --tls-key, or use http:// in the client.",
            )
            self.close()
            return
        self._first = b""
        self._tls = TlsConnection(context, self, failed=self._tls_failed)
        raw, self.transport = self.transport, self._tls
        self._tls.take_over(raw, first)

    def _tls_failed(self, error: OSError) -> None:
        words = of_answering(error)
        log.warning("tls_handshake_failed", client=self.peer, why=f"it {words.what}", remedy=words.remedy)

    def hand_over(self, client: Client) -> None:
        """Let ``client`` go on with the connection and what has come."""
        client.peer, client.transport = self.peer, self.transport
        self.core.clients.discard(self)
        self.core.clients.add(client)
        self.transport.set_protocol(client)
        if self._first:
            client.data_received(self._first)
