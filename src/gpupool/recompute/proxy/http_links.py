"""Connections to our own servers: HTTP/1.1 kept open, one request at a time."""

from typing import Final

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

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""


class HttpLink(Link):
    """To a server of ours, or a proxy before some."""

    kind = Kind.HTTP

    def __init__(self, node: Node, owner: LinkOwner) -> None:
        super().__init__(node, owner)
        self._parser = httptools.HttpResponseParser(self)
        self._reply = HttpReply()
        self._body: list[bytes] = []
        self._received = 0
        self._whole = False
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
        if self._whole:
            if self._fresh:
                self.remember_session()
            reply, self._reply = self._reply, HttpReply()
            self.attempt = None
            self._received, self._whole = 0, False
            self._owner.answered(self, attempt, reply, reusable=self._reusable)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._reply.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Take that the answer is whole."""
        if self._whole:
            raise UnaskedError
        parser, body = self._parser, b"".join(self._body)
        self._body.clear()
        status = parser.get_status_code()
        if status >= 200:
            reply = self._reply
            reply.status, reply.body = status, body
            self._whole = True
            # After this call the parser knows no more of it.
            self._reusable = parser.should_keep_alive()
        else:
            self._reply = HttpReply()
