"""One question to one host over HTTP, and every way in which that can end badly, in words."""

import json
import socket
import ssl
from contextlib import suppress
from http import HTTPStatus
from importlib import import_module
from typing import Final

import aiohttp
from pydantic import ValidationError

from gpupool.contracts.problems import Problem, error_of
from gpupool.contracts.recompute import (
    DEADLINE_HEADER,
    MAX_DEADLINE_MS,
    REQUEST_ID_HEADER,
    ProofReply,
    QualityReply,
)
from gpupool.core.errors import GpupoolError
from gpupool.recompute.client.hosts import Host
from gpupool.recompute.client.questions import Question
from gpupool.recompute.client.trouble import Follows, HostTroubleError
from gpupool.recompute.tls_words import of_asking, of_certificate

_ANSWER_LIMIT: Final = 64 * 1024
_IDLE_S: Final = 15.0
"""A kept connection costs the other side a slot, so it is not kept for long."""
_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_RAISED: Final = frozenset({400, 413})
_PAUSED: Final = frozenset({429, 503})


class Link:
    """Connections to the hosts of one client; made and closed inside an event loop."""

    def __init__(self, connect_timeout_s: float, *, token: str | None, tls: ssl.SSLContext | None) -> None:
        # An error is known by its code once its class exists.
        import_module("gpupool.pos.errors")
        self._connect_timeout_s = connect_timeout_s
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, ssl=tls or True),
            timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout_s),
            headers=headers,
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._http.close()

    async def ask(self, host: Host, question: Question, request_id: str, seconds: float) -> tuple[int, ...]:
        """Return the numbers that ``host`` answers, not verified; raises HostTroubleError.

        ``seconds`` is told to the host; whoever calls ends the waiting, by cancelling, which closes the connection.
        """
        headers = {
            REQUEST_ID_HEADER: request_id,
            DEADLINE_HEADER: str(max(1, min(MAX_DEADLINE_MS, int(seconds * 1000)))),
        }
        try:
            try:
                status, body, retry_after = await self._exchange(host, question, headers)
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                # A restarted host has closed the connections that were kept open; that is no failure of the new one.
                status, body, retry_after = await self._exchange(host, question, headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise HostTroubleError(Follows.REST, self._words(error)) from error
        if status == HTTPStatus.OK:
            return _numbers(question, body)
        raise _refusal(status, body, retry_after)

    async def _exchange(
        self, host: Host, question: Question, headers: dict[str, str]
    ) -> tuple[int, bytes, str | None]:
        async with self._http.post(host.url + question.path, data=question.body, headers=headers) as answer:
            parts, size = [], 0
            async for part in answer.content.iter_any():
                size += len(part)
                if size > _ANSWER_LIMIT:
                    answer.close()
                    raise HostTroubleError(Follows.REST, "sent an answer of more than 64 KiB")
                parts.append(part)
            return answer.status, b"".join(parts), answer.headers.get("Retry-After")

    def _words(self, error: Exception) -> str:
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            cause = error.certificate_error
            if isinstance(cause, ssl.SSLCertVerificationError):
                return of_certificate(cause).what
            return f"has a certificate that is not trusted ({cause})"
        if isinstance(error, aiohttp.ClientConnectorSSLError):
            return of_asking(error.os_error).what
        if isinstance(error, aiohttp.ClientConnectorDNSError | socket.gaierror):
            return "cannot be resolved to an address"
        if isinstance(error, TimeoutError):
            return f"did not take a connection within {self._connect_timeout_s:g} s"
        if isinstance(error, aiohttp.ClientConnectorError):
            reason = error.os_error
            if isinstance(reason, ConnectionRefusedError):
                return "refused the connection"
            return f"cannot be connected ({reason.strerror or reason})"
        if isinstance(
            error, aiohttp.ServerDisconnectedError | ConnectionResetError | aiohttp.ClientPayloadError
        ):
            return "closed the connection without an answer"
        if isinstance(error, aiohttp.ClientResponseError):
            return "answered with something that is not HTTP"
        return f"failed ({type(error).__name__}: {error})"


def _numbers(question: Question, body: bytes) -> tuple[int, ...]:
    try:
        if question.kind == "proof":
            return ProofReply.model_validate_json(body).numbers()
        return QualityReply.model_validate_json(body).numbers()
    except ValidationError as error:
        raise HostTroubleError(Follows.REST, "answered with something that is no recompute answer") from error


def _refusal(status: int, body: bytes, retry_after: str | None) -> HostTroubleError:
    """Return what follows from an answer that is no success."""
    error = _problem(status, body)
    if error is None:
        return HostTroubleError(Follows.REST, f"is no recompute server (it answered {status})")
    said = f"answered {status} {error.code}: {error.message}"
    if status == 404:
        if error.code in {"no_proof", "ambiguous_proof"}:
            return HostTroubleError(Follows.DOUBT, said, error=error)
        return HostTroubleError(Follows.REST, f"has no such service ({said})")
    if status in _RAISED:
        return HostTroubleError(Follows.RAISE, said, error=error)
    if status == 422:
        return HostTroubleError(Follows.ELSEWHERE, said, error=error)
    if status in _PAUSED:
        return HostTroubleError(Follows.PAUSE, said, pause_s=_pause(retry_after), error=error)
    if status == 504:
        return HostTroubleError(Follows.PAUSE, said, error=error)
    return HostTroubleError(Follows.REST, said, error=error)


def _problem(status: int, body: bytes) -> GpupoolError | None:
    with suppress(ValueError):
        parsed = json.loads(body)
        Problem.model_validate(parsed)
        return error_of(status, parsed)
    return None


def _pause(retry_after: str | None) -> float:
    if retry_after is not None and retry_after.isascii() and retry_after.isdecimal():
        return min(_LONGEST_PAUSE_S, float(retry_after[:6]))
    return _PAUSE_S
