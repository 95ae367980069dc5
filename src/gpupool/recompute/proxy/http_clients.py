"""A client that speaks HTTP/1.1: questions go to our servers, everything else is answered here.

One request is under way per connection; a client that closes cancels it. Requests are read whole (64 KiB at most)
and written anew for the server, so that nothing a client makes up reaches one unseen.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import httptools
import structlog

from gpupool.recompute.proxy.answers import problem
from gpupool.recompute.proxy.clients import Client
from gpupool.recompute.proxy.exchanges import Exchange
from gpupool.recompute.proxy.framing import Speech
from gpupool.recompute.proxy.http_exchange import QUESTION_PATHS, HttpExchange
from gpupool.recompute.proxy.nodes import Kind

BODY_LIMIT: Final = 64 * 1024
HEAD_LIMIT: Final = 16 * 1024
MOST_QUEUED: Final = 16
MOST_DEADLINE_SECONDS: Final = 600.0
LONGEST_ID: Final = 64
_ID_CHARACTERS: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class HttpRequest:
    """A request as read; header names in lower case."""

    method: bytes = b""
    target: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    head_size: int = 0
    keep_alive: bool = True


class HttpClient(Client):
    """Parses requests and sends their answers in order."""

    speech = Speech.HTTP

    exchange: Exchange | None = None

    def begin(self) -> "HttpClient":
        """Make the parser; the connection is known to speak HTTP now."""
        self._parser = httptools.HttpRequestParser(self)
        self._request = HttpRequest()
        self._queue: deque[HttpRequest] = deque()
        self._current: HttpRequest | None = None
        return self

    @property
    def busy(self) -> bool:
        """Whether an answer is owed."""
        return self.exchange is not None

    def data_received(self, data: bytes) -> None:
        """Parse; what is no HTTP, or too large, is refused and the connection closed."""
        if not self.partial and self.exchange is None:
            self.since, self.partial = self.core.clock(), True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "invalid_input", "This server does not change protocols.")
        except httptools.HttpParserError as error:
            refusal = error.__context__
            if isinstance(refusal, RequestTooLargeError):
                self._refuse(413, "too_large", str(refusal))
            else:
                self._refuse(400, "invalid_input", "These bytes are no HTTP/1.1 request.")

    # -- what the parser tells -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Note that part of a request is here, also while an earlier one is under way."""
        self.partial = True

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._request.target += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._count(len(name) + len(value) + 4)
        self._request.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Let a client that asks first send its body; refuse one that is announced too large before it comes."""
        length = self._request.headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 9 or int(length) > BODY_LIMIT):
            raise RequestTooLargeError(f"The body is larger than {BODY_LIMIT} bytes.")
        if self._request.headers.get(b"expect", b"").lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if len(self._request.body) + len(body) > BODY_LIMIT:
            raise RequestTooLargeError(f"The body is larger than {BODY_LIMIT} bytes.")
        self._request.body += body

    def on_message_complete(self) -> None:
        """Answer, or queue behind the one under way."""
        request, self._request = self._request, HttpRequest()
        request.method = self._parser.get_method()
        request.keep_alive = bool(self._parser.should_keep_alive())
        if len(self._queue) >= MOST_QUEUED:
            raise RequestTooLargeError(f"More than {MOST_QUEUED} requests wait on one connection.")
        self._queue.append(request)
        self.partial = False
        if self.exchange is None:
            self._serve()

    def _count(self, size: int) -> None:
        self._request.head_size += size
        if self._request.head_size > HEAD_LIMIT:
            raise RequestTooLargeError(f"The head is larger than {HEAD_LIMIT} bytes.")

    # -- answering -------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._queue and self.exchange is None and not self.transport.is_closing():
            request = self._current = self._queue.popleft()
            path = request.target.partition(b"?")[0]
            refusal = self.core.border.refuses_request(self.transport, path, request.headers)
            if refusal is not None:
                log.warning("client_refused", client=self.peer, path=path[:200], why=refusal.detail)
                told = refusal.status, refusal.code, refusal.detail, self.core.next_id(), refusal.challenge
                self._write(problem(*told))
            elif request.method == b"POST" and path in QUESTION_PATHS:
                self._forward(request, path)
            else:
                self._write(self.core.local.answer(request.method, path))

    def _forward(self, request: HttpRequest, path: bytes) -> None:
        core, now = self.core, self.core.clock()
        request_id = self._request_id(request)
        seconds = _deadline_seconds(request.headers.get(b"x-deadline-ms"), core.settings.deadline_seconds)
        refusal: bytes | None = None
        if seconds is None:
            refusal = problem(
                400, "invalid_input", "X-Deadline-Ms is not a number of milliseconds.", request_id
            )
        elif core.instance_id.encode() in request.headers.get(b"x-gpupool-proxy", b""):
            refusal = problem(508, "loop", "This request has passed this proxy before.", request_id)
        elif not core.directory.may_carry(Kind.HTTP):
            core.tallies.refused(self.peer, now)
            refusal = problem(503, "unavailable", "This proxy has no server that speaks HTTP.", request_id)
        if refusal is not None or seconds is None:
            self._write(refusal or b"")
            return
        exchange = HttpExchange(
            self,
            request_id,
            now,
            now + seconds,
            path,
            request.headers,
            bytes(request.body),
            core.instance_id,
            pass_token=not core.border.has_tokens,
        )
        self.exchange = exchange
        core.http.submit(exchange)

    def _request_id(self, request: HttpRequest) -> str:
        given = request.headers.get(b"x-request-id", b"")
        if given and len(given) <= LONGEST_ID and _ID_CHARACTERS.issuperset(given):
            return given.decode("ascii")
        return self.core.next_id()

    def reply(self, exchange: Exchange, answer: bytes) -> None:
        """Send the answer and go on with what came meanwhile."""
        self.exchange = None
        self._write(answer)
        self._serve()

    def give_up(self, exchange: Exchange, why: str) -> None:
        """Tell that no server answered."""
        late = self.core.clock() >= exchange.deadline
        status, code = (504, "deadline") if late else (429, "busy")
        self.reply(exchange, problem(status, code, f"{why[:1].upper()}{why[1:]}.", exchange.id))

    def _write(self, answer: bytes) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(answer)
        self.since = self.core.clock()
        if self._current is None or not self._current.keep_alive or self.core.parting:
            self._queue.clear()
            self.close()

    def _refuse(self, status: int, code: str, detail: str) -> None:
        log.info("http_refused", client=self.peer, status=status, why=detail)
        if self.exchange is not None:
            self.core.http.cancel(self.exchange)
            self.exchange = None
        self._current = None
        self._write(problem(status, code, detail, self.core.next_id()))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left: its question is cancelled."""
        super().connection_lost(exc)
        self._queue.clear()
        if self.exchange is not None:
            self.core.http.cancel(self.exchange)
            self.exchange = None


class RequestTooLargeError(Exception):
    """A request passes one of the limits."""


def _deadline_seconds(given: bytes | None, default: float) -> float | None:
    """Return the time a client gives; None where it is no number."""
    if given is None:
        return default
    if not given.isdigit() or len(given) > 9:
        return None
    return min(int(given) / 1000, MOST_DEADLINE_SECONDS)
