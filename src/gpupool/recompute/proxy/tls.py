"""TLS between an asyncio transport and the protocol above it, on either side of a connection.

The event loop's own TLS can neither begin on bytes that were read already, as they were here to learn what a client
speaks, nor resume a session, which spares most of a handshake. This does both, and tells the other side why it ends.
"""

import asyncio
import hashlib
import hmac
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from gpupool.recompute.tls_words import PinMismatchError

_READ_BYTES: Final = 256 * 1024


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """Below a protocol it is a transport, above a socket it is a protocol."""

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: asyncio.BaseProtocol,
        *,
        host: str | None = None,
        session: ssl.SSLSession | None = None,
        pin: bytes | None = None,
        failed: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        """Without ``host`` this is the side that listens.

        ``pin``: SHA-256 of the only certificate that is accepted. ``failed`` hears why there is no TLS, once.
        """
        asyncio.Transport.__init__(self)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host, session=session
        )
        self.context = context
        self._asks = host is not None
        self._protocol = cast("asyncio.Protocol", protocol)
        self._pin = pin
        self._failed = failed
        self._raw: asyncio.Transport | None = None
        self._ready = False
        self._closing = False
        self._ended = False
        self._fault: OSError | None = None

    # -- towards the socket ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; who asks speaks first."""
        self._raw = cast("asyncio.Transport", transport)
        if self._asks:
            self._shake()

    def take_over(self, transport: asyncio.Transport, first: bytes) -> None:
        """Begin on an accepted connection whose ``first`` bytes have been read."""
        self._raw = transport
        transport.set_protocol(self)
        self.data_received(first)

    def data_received(self, data: bytes) -> None:
        """Decrypt, and pass on."""
        self._incoming.write(data)
        if self._ready or self._shake():
            self._read()

    def eof_received(self) -> bool:
        """Take that the other side sends no more, politely or not."""
        if not self._ready:
            self._fail(ssl.SSLEOFError("EOF in the handshake"))
            return False
        return self._end_of_input()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the protocol, or that there was no handshake."""
        self._closing = True
        if not self._ready:
            self._tell(exc if isinstance(exc, OSError) else ssl.SSLEOFError("EOF in the handshake"))
        if self._ready or not self._asks:
            self._protocol.connection_lost(exc or self._fault)

    def _shake(self) -> bool:
        try:
            self._tls.do_handshake()
            self._check_pin()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._flush()
        self._ready = True
        if self._asks:
            self._protocol.connection_made(self)
        return True

    def _check_pin(self) -> None:
        if self._pin is None:
            return
        shown = hashlib.sha256(self._tls.getpeercert(binary_form=True) or b"").digest()
        if not hmac.compare_digest(shown, self._pin):
            raise PinMismatchError(f"sha256:{shown.hex()}")

    def _read(self) -> None:
        while not self._closing:
            try:
                data = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                data = b""
            except ssl.SSLError as error:
                self._fail(error)
                return
            if not data:
                if not self._end_of_input():
                    self.close()
                return
            self._protocol.data_received(data)
        self._flush()

    def _end_of_input(self) -> bool:
        """Tell the protocol once; return whether it wants to go on sending."""
        if self._ended:
            return True
        self._ended = True
        return bool(self._protocol.eof_received())

    def _flush(self) -> None:
        if self._raw is not None and self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _fail(self, error: OSError) -> None:
        """Send the alert that the library has written, so that the other side learns the reason too; then end."""
        self._flush()
        self._closing, self._fault = True, error
        if self._raw is not None:
            self._raw.close()
        self._tell(error)

    def _tell(self, error: OSError) -> None:
        failed, self._failed = self._failed, lambda error: None
        failed(error)

    # -- towards the protocol --------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the handshake is done."""
        return self._ready

    @property
    def session(self) -> ssl.SSLSession | None:
        """What a later connection to the same side can resume; there once something was read."""
        return self._tls.session

    @property
    def resumed(self) -> bool:
        """Whether the handshake was spared."""
        return bool(self._tls.session_reused)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send; nothing happens once the connection is closing."""
        if self._closing:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def close(self) -> None:
        """Say goodbye and end once everything is sent."""
        if self._closing or self._raw is None:
            return
        self._closing = True
        if self._ready:
            # The other side's goodbye is not waited for; ours lies ready to be sent.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()
        self._raw.close()

    def abort(self) -> None:
        """End at once."""
        self._closing = True
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        """Tell whether nothing more can be sent."""
        return self._closing or self._raw is None or self._raw.is_closing()

    def pause_reading(self) -> None:
        """Let the socket wait."""
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Go on reading."""
        if self._raw is not None:
            self._raw.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol go on."""
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol above."""
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``ssl_object``, ``peercert``, or what the socket tells."""
        if name == "ssl_object":
            return self._tls
        if name == "peercert":
            return self._tls.getpeercert() if self._ready else default
        return default if self._raw is None else self._raw.get_extra_info(name, default)
