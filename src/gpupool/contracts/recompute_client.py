"""A client of a recompute server, for commands and tests: one connection, clear errors, nothing retried.

It carries a deadline in every request, so a server does not start work whose answer nobody waits for.
"""

import json
import time
from importlib import import_module
from types import TracebackType
from typing import Final, Self, TypeVar

import httpx
from pydantic import ValidationError

from gpupool.contracts.base import Message
from gpupool.contracts.problems import error_of
from gpupool.contracts.recompute import (
    DEADLINE_HEADER,
    PROOFS_PATH,
    QUALITIES_PATH,
    REQUEST_ID_HEADER,
    SERVER_PATH,
    ProofReply,
    ProofRequest,
    QualityReply,
    QualityRequest,
    RecomputeServerView,
)
from gpupool.core.errors import DeadlineError, GpupoolError, InvalidInputError, UnavailableError
from gpupool.core.ids import new_id

CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 0.5
"""A server's own word on a missed deadline may arrive this much later than it."""
_Reply = TypeVar("_Reply", bound=Message)


class RecomputeClient:
    """Talks to one server at ``http://host:port``; use it as a context manager."""

    def __init__(self, url: str, *, connect_seconds: float = CONNECT_SECONDS) -> None:
        self.url = url.rstrip("/")
        try:
            self._http = httpx.Client(
                base_url=self.url,
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=connect_seconds),
                trust_env=False,
            )
        except httpx.InvalidURL as error:
            raise InvalidInputError(
                f"{url!r} is not an address of a recompute server: {str(error).rstrip('.')}.",
                remedy="Give it as http://HOST:PORT.",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def recover_proof(self, request: ProofRequest, *, seconds: float = ANSWER_SECONDS) -> ProofReply:
        """Return a full proof within ``seconds``; raise the server's error, DeadlineError or UnavailableError."""
        return self._call("POST", PROOFS_PATH, ProofReply, seconds, request)

    def look_up_quality(self, request: QualityRequest, *, seconds: float = ANSWER_SECONDS) -> QualityReply:
        """Return the pair of x of a quality within ``seconds``; errors as for `recover_proof`."""
        return self._call("POST", QUALITIES_PATH, QualityReply, seconds, request)

    def server(self, *, seconds: float = ANSWER_SECONDS) -> RecomputeServerView:
        """Return what the server is, can do and does right now."""
        return self._call("GET", SERVER_PATH, RecomputeServerView, seconds)

    def _call(
        self, method: str, path: str, kind: type[_Reply], seconds: float, body: Message | None = None
    ) -> _Reply:
        headers = {
            "Content-Type": "application/json",
            REQUEST_ID_HEADER: new_id("req"),
            DEADLINE_HEADER: str(max(1, round(seconds * 1000))),
        }
        content = None if body is None else body.model_dump_json(exclude_none=True)
        timeout = httpx.Timeout(seconds + _GRACE_SECONDS, connect=self._http.timeout.connect)
        started = time.monotonic()
        try:
            answer = self._http.request(method, path, content=content, headers=headers, timeout=timeout)
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            spent = time.monotonic() - started
            raise DeadlineError(
                f"The recompute server at {self.url} did not answer in {spent:.1f} s."
            ) from error
        except httpx.HTTPError as error:
            raise UnavailableError(
                f"The recompute server at {self.url} cannot be reached: {str(error).rstrip('.')}.",
                remedy="Check that it runs (`gpupool status`) and that address and port are right.",
            ) from error
        return self._parsed(answer, kind)

    def _parsed(self, answer: httpx.Response, kind: type[_Reply]) -> _Reply:
        if answer.status_code != httpx.codes.OK:
            raise self._error_of(answer)
        try:
            return kind.model_validate_json(answer.content)
        except ValidationError as error:
            raise self._stranger() from error

    def _error_of(self, answer: httpx.Response) -> GpupoolError:
        """Return the server's own error; a refusal in another form comes from a stranger."""
        # An error is known by its code once its class exists. These classes are light, but most processes need none.
        import_module("gpupool.pos.errors")
        try:
            body = json.loads(answer.content)
        except ValueError:
            body = None
        said = isinstance(body, dict) and isinstance(body.get("code"), str)
        if (not said and answer.status_code < 500) or answer.status_code == httpx.codes.UNAUTHORIZED:
            return self._stranger()
        return error_of(answer.status_code, body)

    def _stranger(self) -> UnavailableError:
        return UnavailableError(
            f"What answers at {self.url} is no recompute server.", remedy="Check address and port."
        )
