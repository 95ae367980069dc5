"""Opens connections to nodes, plain or over TLS, for requests and for probes alike.

The session of a node's last TLS connection is kept, so that the next one resumes it instead of shaking hands anew.
"""

import asyncio
import errno
from contextlib import suppress
from typing import Final, TypeVar, cast

from gpupool.core.errors import EnvironmentProblemError
from gpupool.recompute.proxy.names import addresses_of, moved
from gpupool.recompute.proxy.nodes import Node
from gpupool.recompute.proxy.tls import TlsConnection
from gpupool.recompute.proxy.trust import Keyring
from gpupool.recompute.tls_words import of_asking

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_P = TypeVar("_P", bound=asyncio.Protocol)


class NoConnectionError(Exception):
    """There is no connection to a node; says why, and for TLS what to do."""

    def __init__(self, why: str, remedy: str | None = None, *, ours: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy
        self.ours = ours
        """This machine is short of something; the node is not to blame."""


async def connect(node: Node, protocol: _P, keyring: Keyring, seconds: float) -> _P:
    """Connect ``protocol`` to ``node``; it is made once the other side has proved who it is.

    Raises NoConnectionError where that takes more than ``seconds`` or cannot be.
    """
    try:
        async with asyncio.timeout(seconds):
            if node.trust.tls:
                await _secured(node, protocol, keyring)
            else:
                await _reach(node, protocol)
    except EnvironmentProblemError as error:
        raise NoConnectionError(error.message, error.remedy) from error
    except TimeoutError as error:
        moved(node)
        raise NoConnectionError("no connection in time") from error
    except OSError as error:
        moved(node)
        why, ours = (error.strerror or str(error)).lower(), error.errno in _OURS
        raise NoConnectionError(why, ours=ours) from error
    return protocol


async def _reach(node: Node, protocol: asyncio.BaseProtocol) -> None:
    """Connect to the first address of a node that takes the connection; raise OSError where none does."""
    loop, port = asyncio.get_running_loop(), node.wish.port
    *others, last = await addresses_of(node)
    for address in others:
        with suppress(OSError):
            await loop.create_connection(lambda: protocol, address, port)
            return
    await loop.create_connection(lambda: protocol, last, port)


async def _secured(node: Node, protocol: asyncio.Protocol, keyring: Keyring) -> None:
    loop = asyncio.get_running_loop()
    context, trust = keyring.context(node.trust), node.trust
    made: asyncio.Future[None] = loop.create_future()
    announcer = _Announcer(protocol, made)

    def failed(error: OSError) -> None:
        if not made.done():
            made.set_exception(error)

    known, session = node.session or (None, None)
    connection = TlsConnection(
        context,
        announcer,
        host=trust.server_name or node.wish.host,
        session=session if known is context else None,
        pin=trust.pin,
        failed=failed,
    )
    await _reach(node, connection)
    try:
        await made
    except OSError as error:
        words = of_asking(error)
        raise NoConnectionError(f"it {words.what}", words.remedy) from error
    except asyncio.CancelledError:
        connection.abort()
        raise


class _Announcer(asyncio.Protocol):
    """Tells that the handshake is done, and makes room for the protocol that was meant."""

    def __init__(self, protocol: asyncio.Protocol, made: "asyncio.Future[None]") -> None:
        self._protocol, self._made = protocol, made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand over, unless whoever waited has gone."""
        if self._made.done():
            transport.close()
            return
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
        self._made.set_result(None)


async def open_stream(
    node: Node, keyring: Keyring, seconds: float, limit: int = 64 * 1024
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect for a probe; raises NoConnectionError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = _Stream(reader, loop)
    await connect(node, protocol, keyring, seconds)
    return reader, asyncio.StreamWriter(protocol.transport, protocol, reader, loop)


class _Stream(asyncio.StreamReaderProtocol):
    """Remembers its transport."""

    transport: asyncio.Transport

    def __init__(self, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember it."""
        self.transport = cast("asyncio.Transport", transport)
        super().connection_made(transport)
