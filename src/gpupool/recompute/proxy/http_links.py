"""Connections to our own servers: HTTP/1.1 kept open, one request at a time."""

from typing import ClassVar, Final

import httptools

from gpupool.recompute.proxy.links import Link, LinkOwner
from gpupool.recompute.proxy.nodes import Kind, Node

REPLY_LIMIT: Final = 256 * 1024
"""Bytes of an answer with its head; a real one has two thousand."""


class UnaskedError(Exception):
    """A second answer came with the one that was asked for."""


class HttpReply:
    """An answer of a server; header names in lower case."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class HttpLink(Link):
    """To a server of ours, or a proxy before some."""

    __deletable__ = ("_parser",)

    kind: ClassVar[Kind] = Kind.HTTP

    def __init__(self, node: Node, owner: LinkOwner) -> None:
        super().__init__(node, owner)
        self._fields: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        # The parser calls these without a step of Python between.
        self.on_header = self._fields.__setitem__
        self.on_body = self._body.append
        self._parser = httptools.HttpResponseParser(self)
        self._reply: HttpReply | None = None
        self._received = 0
        self._reusable = False

    def data_received(self, data: bytes) -> None:
        """Parse; an answer that nobody asked for, is malformed or too large ends the connection."""
        self._received += len(data)
        attempt = self.attempt
        if attempt is None or self._received > REPLY_LIMIT:
            self._spoil("it answered with more than was asked")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._spoil("it answered with what is no HTTP")
            return
        reply = self._reply
        if reply is not None:
            if self._fresh:
                self.remember_session()
            self._reply = self.attempt = None
            self._received = 0
            self._owner.answered(self, attempt, reply, reusable=self._reusable)

    def on_message_complete(self) -> None:
        """Take that the answer is whole."""
        if self._reply is not None:
            raise UnaskedError
        parser, fields, body = self._parser, self._fields, self._body
        status = parser.get_status_code()
        if status >= 200:
            headers = dict(zip(map(bytes.lower, fields), fields.values(), strict=True))
            self._reply = HttpReply(status, headers, b"".join(body))
            # After this call the parser knows no more of it.
            self._reusable = parser.should_keep_alive()
        fields.clear()
        body.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner; the parser, which holds this link's methods, need not wait for the collector of garbage."""
        super().connection_lost(exc)
        del self._parser
