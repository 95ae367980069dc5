"""A question to one of our servers: how it is written for them, and what their answers are worth.

An answer's shape is checked (64 x of a proof, two of a quality); whether the x are right is for the client to check,
which can do it in microseconds and would have to anyway.
"""

import json
import re
from typing import Final, cast

from gpupool.recompute.proxy.answers import PHRASES
from gpupool.recompute.proxy.exchanges import Asker, Exchange, Judgement
from gpupool.recompute.proxy.http_links import HttpReply
from gpupool.recompute.proxy.nodes import Kind

QUESTION_PATHS: Final = {b"/v1/proofs": ("proofs", "proof", 64), b"/v1/qualities": ("qualities", "x", 2)}
"""Path -> name, the answer's field, how many numbers it holds."""
_PASSED_ON: Final = (b"content-type", b"accept", b"authorization")
_PASSED_BACK: Final = (b"content-type", b"retry-after", b"x-checked")
_LEVEL: Final = re.compile(rb'"(?:level|bits)"\s*:\s*(\d{1,3})')
_FINAL: Final = frozenset({400, 401, 403, 404, 405, 413})
"""Another server would say the same."""
_ELSEWHERE: Final = frozenset({422, 429, 503})
"""This server is well; another may do it."""


class HttpExchange(Exchange):
    """A question with its body."""

    __slots__ = ("_body", "_head", "_path", "_refusal")
    kind = Kind.HTTP

    def __init__(
        self,
        asker: Asker,
        request_id: str,
        started: float,
        deadline: float,
        path: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
        instance_id: str,
    ) -> None:
        name = QUESTION_PATHS[path][0]
        level = _LEVEL.search(body)
        super().__init__(
            asker, request_id, started, deadline, f"{name}/{level[1].decode() if level else '?'}"
        )
        self._path = path
        self._body = body
        self._refusal: HttpReply | None = None
        passed = b"".join(key + b": " + headers[key] + b"\r\n" for key in _PASSED_ON if key in headers)
        chain = headers.get(b"x-gpupool-proxy")
        chain = chain + b"," + instance_id.encode() if chain else instance_id.encode()
        self._head = (
            b"POST " + path + b" HTTP/1.1\r\nHost: gpupool\r\n" + passed
            + b"Content-Length: %d\r\nX-Request-Id: %b\r\nX-Gpupool-Proxy: %b\r\n"
            % (len(body), request_id.encode(), chain)
        )  # fmt: skip

    def encode(self, now: float) -> bytes:
        """Return the request with the time that is left."""
        left = max(1, int((self.deadline - now) * 1000))
        return self._head + b"X-Deadline-Ms: %d\r\n\r\n" % left + self._body

    def judge(self, reply: object) -> Judgement:
        """Tell what an answer is worth."""
        reply = cast("HttpReply", reply)
        if reply.status == 200:
            return Judgement.GOOD if self._has_shape(reply) else Judgement.WRONG
        if reply.status in _FINAL:
            return Judgement.GOOD
        if reply.status in _ELSEWHERE:
            self._refusal = reply
            return Judgement.BUSY
        if reply.status == 504:
            return Judgement.BUSY
        return Judgement.BAD

    def answer(self, reply: object) -> bytes:
        """Return the answer with the headers that matter to a client."""
        reply = cast("HttpReply", reply)
        headers = reply.headers
        passed = b"".join(key + b": " + headers[key] + b"\r\n" for key in _PASSED_BACK if key in headers)
        phrase = PHRASES.get(reply.status, "Status").encode()
        return (
            b"HTTP/1.1 %d %b\r\n" % (reply.status, phrase) + passed
            + b"Content-Length: %d\r\nX-Request-Id: %b\r\n\r\n" % (len(reply.body), self.id.encode())
            + reply.body
        )  # fmt: skip

    def settle(self) -> bytes | None:
        """A level that no server supports is told at once; busy servers are asked again."""
        if self._refusal is not None and self._refusal.status == 422:
            return self.answer(self._refusal)
        return None

    def _has_shape(self, reply: HttpReply) -> bool:
        _, name, count = QUESTION_PATHS[self._path]
        if reply.headers.get(b"content-type", b"").startswith(b"application/octet-stream"):
            return len(reply.body) in {count * 4, count * 8}
        try:
            fields = json.loads(reply.body)
        except (ValueError, RecursionError):
            return False
        numbers = fields.get(name) if isinstance(fields, dict) else None
        return (
            isinstance(numbers, list) and len(numbers) == count and all(isinstance(x, str) for x in numbers)
        )
