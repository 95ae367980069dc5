"""A client that speaks HTTP/1.1: questions go to our servers, everything else is answered here.

One request is under way per connection; a client that closes cancels it. Requests are read whole (64 KiB at most)
and written anew for the server, so that nothing a client makes up reaches one unseen.
"""

from collections import deque
from typing import ClassVar, Final

import httptools
import structlog

from gpupool.recompute.proxy.answers import problem
from gpupool.recompute.proxy.clients import Client
from gpupool.recompute.proxy.exchanges import Exchange
from gpupool.recompute.proxy.framing import Speech
from gpupool.recompute.proxy.http_exchange import QUESTION_PATHS, HttpExchange
from gpupool.recompute.proxy.nodes import Kind
from gpupool.recompute.proxy.shim_reports import HEADER as SHIM_HEADER

BODY_LIMIT: Final = 64 * 1024
HEAD_LIMIT: Final = 16 * 1024
MOST_QUEUED: Final = 16
MOST_DEADLINE_SECONDS: Final = 600.0
LONGEST_ID: Final = 64
_LARGE_BODY: Final = f"The body is larger than {BODY_LIMIT} bytes."
_LARGE_HEAD: Final = f"The head is larger than {HEAD_LIMIT} bytes."
_ID_CHARACTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
log = structlog.get_logger(__name__)


class HttpRequest:
    """A request as read; header names in lower case."""

    __slots__ = ("body", "headers", "keep_alive", "method", "target")

    def __init__(
        self, method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes, keep_alive: bool
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.keep_alive = keep_alive


class HttpClient(Client):
    """Parses requests and sends their answers in order."""

    __deletable__ = ("_parser",)

    speech: ClassVar[Speech] = Speech.HTTP

    exchange: Exchange | None = None

    def begin(self) -> "HttpClient":
        """Make the parser; the connection is known to speak HTTP now."""
        self._target: list[bytes] = []
        self._fields: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        # The parser calls these without a step of Python between.
        self.on_url = self._target.append
        self.on_header = self._fields.__setitem__
        self.on_body = self._body.append
        self._parser = httptools.HttpRequestParser(self)
        self._headers: dict[bytes, bytes] | None = None
        self._arrived = 0
        self._queue: deque[HttpRequest] = deque()
        self._current: HttpRequest | None = None
        return self

    @property
    def busy(self) -> bool:
        """Whether an answer is owed."""
        return self.exchange is not None

    def data_received(self, data: bytes) -> None:
        """Parse; what is no HTTP, or too large, is refused and the connection closed."""
        if self.exchange is None and not self.partial:
            self.since, self.partial = self.core.clock(), True
        self._arrived += len(data)
        try:
            self._parser.feed_data(data)
            if self.partial:
                self._look_at_unfinished()
        except RequestTooLargeError as error:
            self._refuse(413, "too_large", str(error))
        except httptools.HttpParserUpgrade:
            self._refuse(400, "invalid_input", "This server does not change protocols.")
        except httptools.HttpParserError as failure:
            refusal = failure.__context__
            if isinstance(refusal, RequestTooLargeError):
                self._refuse(413, "too_large", str(refusal))
            else:
                self._refuse(400, "invalid_input", "These bytes are no HTTP/1.1 request.")

    # -- what the parser tells -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Note that part of a request is here, also behind a whole one."""
        self.partial = True

    def on_headers_complete(self) -> None:
        """Take the headers."""
        fields = self._fields
        if self._arrived > HEAD_LIMIT:
            self._limit_head()
        self._headers = dict(zip(map(bytes.lower, fields), fields.values(), strict=True))

    def on_message_complete(self) -> None:
        """Answer, or queue behind the one under way."""
        parser, target, body = self._parser, self._target, self._body
        request = HttpRequest(
            parser.get_method(),
            b"".join(target),
            self._headers or {},
            b"".join(body),
            parser.should_keep_alive(),
        )
        if len(request.body) > BODY_LIMIT:
            raise RequestTooLargeError(_LARGE_BODY)
        target.clear()
        self._fields.clear()
        body.clear()
        self._arrived, self.partial = 0, False
        self._headers = None
        if self.exchange is None and not self._queue:
            self._answer(request)
        elif len(self._queue) >= MOST_QUEUED:
            raise RequestTooLargeError(f"More than {MOST_QUEUED} requests wait on one connection.")
        else:
            self._queue.append(request)

    def _look_at_unfinished(self) -> None:
        """Refuse what is too large already; let a client that asks first send its body."""
        headers = self._headers
        if headers is None:
            if self._arrived > HEAD_LIMIT:
                raise RequestTooLargeError(_LARGE_HEAD)
            return
        length = headers.get(b"content-length", b"")
        announced = length.isdigit() and (len(length) > 9 or int(length) > BODY_LIMIT)
        body = sum(map(len, self._body)) if self._arrived > BODY_LIMIT else 0
        if announced or body > BODY_LIMIT or self._arrived > HEAD_LIMIT + BODY_LIMIT:
            raise RequestTooLargeError(_LARGE_BODY)
        if headers.pop(b"expect", b"").lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _limit_head(self) -> None:
        fields = self._fields.items()
        size = sum(map(len, self._target)) + sum(len(name) + len(value) + 4 for name, value in fields)
        if size > HEAD_LIMIT:
            raise RequestTooLargeError(_LARGE_HEAD)

    # -- answering -------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._queue and self.exchange is None:
            self._answer(self._queue.popleft())

    def _answer(self, request: HttpRequest) -> None:
        if self.transport.is_closing():
            return
        self._current = request
        core, path = self.core, request.target
        if path not in QUESTION_PATHS:
            path = path.partition(b"?")[0]
        refusal = None
        if not core.border.is_open:
            refusal = core.border.refuses_request(self.transport, path, request.headers)
        if refusal is not None:
            log.warning("client_refused", client=self.peer, path=path[:200], why=refusal.detail)
            told = refusal.status, refusal.code, refusal.detail, core.next_id(), refusal.challenge
            self._write(problem(*told))
        elif request.method == b"POST" and path in QUESTION_PATHS:
            self._forward(request, path)
        else:
            self._write(core.local.answer(request.method, path))

    def _forward(self, request: HttpRequest, path: bytes) -> None:
        core, headers = self.core, request.headers
        now, given = core.clock(), headers.get(b"x-request-id")
        request_id = (given and _request_id(given)) or core.next_id()
        seconds = core.settings.deadline_seconds
        if b"x-deadline-ms" in headers:
            seconds = _deadline_seconds(headers[b"x-deadline-ms"])
        if SHIM_HEADER in headers and not core.tallies.shim(self.peer, headers[SHIM_HEADER], now):
            log.warning("shim_report_ignored", client=self.peer, given=headers[SHIM_HEADER][:100])
        if seconds < 0 or b"x-gpupool-proxy" in headers or not core.http.has_nodes or core.rate is not None:
            refusal = self._refusal(headers, request_id, seconds, now)
            if refusal is not None:
                self._write(refusal)
                return
        token = None if core.border.has_tokens else headers.get(b"authorization")
        self.exchange = exchange = HttpExchange(
            self, request_id, now, now + seconds, path, headers, request.body, core.instance_name, token
        )
        core.http.submit(exchange)

    def _refusal(
        self, headers: dict[bytes, bytes], request_id: str, seconds: float, now: float
    ) -> bytes | None:
        core = self.core
        if seconds < 0:
            detail = "X-Deadline-Ms is not a number of milliseconds."
            return problem(400, "invalid_input", detail, request_id)
        if core.instance_name in headers.get(b"x-gpupool-proxy", b""):
            return problem(508, "loop", "This request has passed this proxy before.", request_id)
        if core.rate is not None and not core.rate.admits(self.peer, now):
            return problem(429, "busy", "This client asks more often than it may.", request_id)
        if not core.directory.may_carry(Kind.HTTP):
            core.tallies.refused(self.peer, now)
            detail = "This proxy has no server that speaks HTTP."
            return problem(503, "unavailable", detail, request_id)
        return None

    def reply(self, exchange: Exchange, answer: bytes) -> None:
        """Send the answer and go on with what came meanwhile."""
        self.exchange = None
        self._write(answer)
        if self._queue:
            self._serve()

    def give_up(self, exchange: Exchange, why: str) -> None:
        """Tell that no server answered."""
        late = self.core.clock() >= exchange.deadline
        status, code = (504, "deadline") if late else (429, "busy")
        self.reply(exchange, problem(status, code, f"{why[:1].upper()}{why[1:]}.", exchange.id))

    def _write(self, answer: bytes) -> None:
        if self.transport.is_closing():
            return
        core = self.core
        self.transport.write(answer)
        self.since = core.clock()
        if self._current is None or not self._current.keep_alive or (core.draining and core.parting):
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
        # It holds this client's methods, so each of both would wait for the collector of garbage.
        del self._parser
        if self.exchange is not None:
            self.core.http.cancel(self.exchange)
            self.exchange = None


class RequestTooLargeError(Exception):
    """A request passes one of the limits."""


def _request_id(given: bytes) -> str | None:
    """Return the id a client gives; None where it is none that a log could hold."""
    if len(given) > LONGEST_ID or given.translate(None, _ID_CHARACTERS):
        return None
    return given.decode("ascii")


def _deadline_seconds(given: bytes) -> float:
    """Return the time a client gives; less than zero where it is no number."""
    if not given.isdigit() or len(given) > 9:
        return -1.0
    return min(int(given) / 1000, MOST_DEADLINE_SECONDS)
