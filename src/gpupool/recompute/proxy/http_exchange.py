"""A question to one of our servers: how it is written for them, and what their answers are worth.

An answer's shape is checked here (64 x of a proof, two of a quality); whether the x are right, by `verdicts`.
"""

import json
import re
from typing import ClassVar, Final, cast

from gpupool.recompute.proxy.answers import PHRASES, problem
from gpupool.recompute.proxy.exchanges import Asker, Exchange, Judgement
from gpupool.recompute.proxy.http_links import HttpReply
from gpupool.recompute.proxy.nodes import Kind, Node

QUESTION_PATHS: Final = {b"/v1/proofs": ("proofs", "proof", 64), b"/v1/qualities": ("qualities", "x", 2)}
"""Path -> name, the answer's field, how many numbers it holds."""
_BINARY: Final = b"application/octet-stream"
_JSON: Final = b"application/json"
"""What a question or an answer is that does not say so."""
_QUESTION: Final = (
    b"POST %b HTTP/1.1\r\nHost: gpupool\r\nContent-Type: %b\r\nContent-Length: %d\r\nX-Request-Id: %b\r\n"
    b"X-Gpupool-Proxy: %b\r\n%bX-Deadline-Ms: %d\r\n\r\n%b"
)
_ANSWER: Final = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nX-Request-Id: %b\r\n%b\r\n%b"
_STATUS_LINES: Final = {status: f"{status} {phrase}".encode() for status, phrase in PHRASES.items()}
_LEVEL: Final = re.compile(rb'"(?:level|bits)"\s*:\s*(\d{1,3})')
_DIGITS: Final = b"0123456789abcdefABCDEF"
_OPENINGS: Final = {
    path: {
        f'{{"{name}":{space}['.encode(): (gap := f'",{space}"'.encode(), gap * (count - 1))
        for space in ("", " ")
    }
    for path, (_, name, count) in QUESTION_PATHS.items()
}
"""Path -> how an answer may begin -> what stands between two of its numbers then, and between all of them."""
_ENDINGS: Final = frozenset(
    [b"}"]
    + [
        f',{space}"checked":{space}"{what}"}}'.encode()
        for what in ("challenge", "tables")
        for space in ("", " ")
    ]
)
_GOOD: Final = Judgement.GOOD
_FINAL: Final = frozenset({400, 404, 405, 413})
"""Another server would say the same, if this one is well."""
_LOCKED: Final = frozenset({401, 403})
_ELSEWHERE: Final = frozenset({422, 429, 503})
"""This server is well; another may do it."""


class HttpExchange(Exchange):
    """A question with its body."""

    kind: ClassVar[Kind] = Kind.HTTP
    _refusal: HttpReply | None = None
    _doubt: HttpReply | None = None

    def __init__(
        self,
        asker: Asker,
        request_id: str,
        started: float,
        deadline: float,
        path: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
        instance: bytes,
        token: bytes | None,
    ) -> None:
        """``instance``: this proxy's id; ``token``: what the client brought for the servers, not for this proxy."""
        level = _LEVEL.search(body)
        measure = f"{QUESTION_PATHS[path][0]}/{level[1].decode() if level else '?'}"
        Exchange.__init__(self, asker, request_id, started, deadline, measure)
        self._denied: frozenset[str] = frozenset()
        self._path = path
        self._body = body
        self._headers = headers
        self._instance = instance
        self._authorization = token

    def encode(self, now: float, authorization: bytes = b"") -> bytes:
        """Return the request with the time that is left."""
        headers, more = self._headers, authorization
        if b"accept" in headers:
            more = b"Accept: %b\r\n%b" % (headers[b"accept"], more)
        if self._authorization is not None and not authorization:
            more = b"Authorization: %b\r\n%b" % (self._authorization, more)
        chain = self._instance
        if b"x-gpupool-proxy" in headers:
            chain = b"%b,%b" % (headers[b"x-gpupool-proxy"], chain)
        return _QUESTION % (
            self._path,
            headers.get(b"content-type", _JSON),
            len(self._body),
            self.id.encode(),
            chain,
            more,
            max(1, int((self.deadline - now) * 1000)),
            self._body,
        )

    def judge(self, reply: object, node: Node) -> Judgement:
        """Tell what an answer is worth."""
        reply = cast("HttpReply", reply)
        if reply.status == 200:
            if is_usual(self._path, reply) or self._has_shape(reply):
                return _GOOD
            self.fault = "it answered with what cannot be an answer"
            return Judgement.WRONG
        if reply.status in _LOCKED:
            return self._locked(reply, node)
        if reply.status in _FINAL:
            return self._doubted(reply, node)
        if reply.status in _ELSEWHERE:
            if reply.status == 422:
                self._refusal = reply
                self.refusers |= node.itself
            return Judgement.BUSY
        if reply.status == 504:
            return Judgement.BUSY
        self.fault = "it answered with an error"
        return Judgement.BAD

    def _locked(self, reply: HttpReply, node: Node) -> Judgement:
        """It is the client's fault only where the client's own token was passed on."""
        if self._authorization and not node.authorization:
            if self.refusers - node.itself:
                return Judgement.GOOD
            # While tokens are renewed one server may know what another one does not yet.
            self._refusal = reply
            self.refusers |= node.itself
            return Judgement.BUSY
        self._denied |= node.itself
        lacks = "does not know this proxy's token" if node.authorization else "wants a token that nobody gave"
        if b"certificate" in reply.body:
            lacks = "wants a client certificate (cert= and key=)"
        self.fault = f"it {lacks}"
        return Judgement.BAD

    def _doubted(self, reply: HttpReply, node: Node) -> Judgement:
        """That there is no proof, or no such question, is believed once two servers say so: one alone may be broken."""
        if self.refusers - node.itself:
            self.accused = ()
            return Judgement.GOOD
        self._doubt = reply
        self.refusers |= node.itself
        no_proof = b"no_proof" in reply.body
        what = (
            "it found no proof where there is one"
            if no_proof
            else f"it refused ({reply.status}) a good question"
        )
        self.accused += ((node.name, what),)
        return Judgement.BUSY

    def answer(self, reply: object) -> bytes:
        """Return the answer with the headers that matter to a client."""
        reply = cast("HttpReply", reply)
        headers, more = reply.headers, b""
        if b"x-checked" in headers:
            more = b"X-Checked: %b\r\n" % headers[b"x-checked"]
        if b"retry-after" in headers:
            more = b"Retry-After: %b\r\n%b" % (headers[b"retry-after"], more)
        return _ANSWER % (
            _STATUS_LINES.get(reply.status) or b"%d Status" % reply.status,
            headers.get(b"content-type", _JSON),
            len(reply.body),
            self.id.encode(),
            more,
            reply.body,
        )

    def settle(self, *, alone: bool) -> bytes | None:
        """What every server would say is told at once; busy servers are asked again."""
        if alone and (word := self.last_word()) is not None:
            return word
        accused = {name for name, _ in self.accused}
        if not self.tried <= accused | self._denied:
            return None
        if self._denied:
            detail = "No server behind this proxy lets it in: they want a token or a certificate of its own."
            return problem(502, "locked_out", detail, self.id)
        if self._doubt is not None:
            return self.answer(self._doubt)
        detail = "Every server answered with what is no proof for this question."
        return problem(502, "wrong_answer", detail, self.id)

    def last_word(self) -> bytes | None:
        """Return what a server said that would not or could not do it."""
        told = self._refusal or self._doubt
        return None if told is None else self.answer(told)

    def evidence(self, reply: object) -> tuple[bytes, bytes, bytes] | None:
        """Return path, question and answer of a success."""
        reply = cast("HttpReply", reply)
        return (self._path, self._body, bytes(reply.body)) if reply.status == 200 else None

    def _has_shape(self, reply: HttpReply) -> bool:
        _, name, count = QUESTION_PATHS[self._path]
        if reply.headers.get(b"content-type", b"").startswith(_BINARY):
            return len(reply.body) in {count * 4, count * 8}
        try:
            fields = json.loads(reply.body)
        except (ValueError, RecursionError):
            return False
        numbers = fields.get(name) if isinstance(fields, dict) else None
        return isinstance(numbers, list) and len(numbers) == count and set(map(type, numbers)) == {str}


def is_usual(path: bytes, reply: HttpReply) -> bool:
    """Tell whether an answer is written as our servers do: its shape is known without a reader of JSON then.

    So many gaps stand between the numbers, and without digits nothing but these gaps is left.
    """
    body = reply.body
    first, last = body.find(b'["') + 1, body.find(b'"]')
    between = _OPENINGS[path].get(body[:first])
    if between is None:
        return False
    gap, gaps = between
    return (
        body.count(gap, first + 1, last) == len(gaps) // len(gap)
        and body[first + 1 : last].translate(None, _DIGITS) == gaps
        and body[last + 2 :] in _ENDINGS
        and not reply.headers.get(b"content-type", b"").startswith(_BINARY)
    )
