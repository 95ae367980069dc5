"""The agent's side of the wire: joining, signed requests and the command stream, with aiohttp's errors left behind.

Every request has a time limit, and a stream that stays silent for three signs of life is broken: hung is worse than
dead.
"""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import aiohttp
from pydantic import ValidationError
from yarl import URL

from gpupool.contracts.agent_link import (
    KEEPALIVE_SECONDS,
    MAX_LOG_BYTES,
    Command,
    JoinReply,
    JoinRequest,
    Report,
    ReportReply,
)
from gpupool.contracts.problems import error_of
from gpupool.core.errors import DeadlineError, UnauthorizedError, UnavailableError
from gpupool.core.keys import SigningKey

_JOIN: Final = "/v1/agent/join"
_READ_BUFFER: Final = 2 * 1024 * 1024
"""Half of the longest command line that is taken."""
_MOST_ANSWER: Final = 1024 * 1024


class ControlClient:
    """Speaks the agent link with one control. Use as an async context manager."""

    def __init__(self, base: str, key: SigningKey, timeout: float = 10.0) -> None:
        """``timeout``: seconds for a whole request, the command stream excepted."""
        self.base = base
        self.node_id: str | None = None
        """Under which requests are signed; known after `join`, or set from what was kept."""
        self._key = key
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=5.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def public_key(self) -> str:
        """The public half of the node's key, as the wire wants it."""
        return self._key.public_text

    async def join(self, request: JoinRequest, token: str) -> str:
        """Make the node known and return its id; raise UnauthorizedError without a token that control takes."""
        body = request.model_dump_json().encode()
        answer = await self._post(_JOIN, body, {"Authorization": f"Bearer {token}"})
        self.node_id = self._node_in(answer)
        return self.node_id

    async def join_again(self, request: JoinRequest, node_id: str) -> None:
        """Say again who the node is, with no token but its key.

        Raises UnauthorizedError where control does not know it, NodeRemovedError where a person has removed it.
        """
        self.node_id = node_id
        self._node_in(await self._post_signed(_JOIN, request.model_dump_json().encode()))

    def _node_in(self, answer: bytes) -> str:
        try:
            return JoinReply.model_validate_json(answer).node_id
        except ValidationError as error:
            raise UnavailableError(f"What answers at {self.base} is not control.") from error

    async def report(self, report: Report) -> ReportReply:
        """Send a report and return control's answer."""
        answer = await self._post_signed("/v1/agent/reports", report.model_dump_json().encode())
        try:
            return ReportReply.model_validate_json(answer)
        except ValidationError as error:
            raise UnavailableError(f"What answers at {self.base} is not control.") from error

    async def send_log(self, request_id: str, text: str) -> None:
        """Answer a ``logs`` command; only the last MiB is sent."""
        body = text.encode()[-MAX_LOG_BYTES:]
        await self._post_signed(f"/v1/agent/logs/{request_id}", body, "text/plain; charset=utf-8")

    async def commands(self, after: int) -> AsyncIterator[Command]:
        """Yield commands with a number above ``after`` as they come, and unnumbered ones.

        Raises UnavailableError when the stream ends, breaks or stays silent.
        """
        target = f"/v1/agent/commands?after={after}"
        headers = self._signature("GET", target, b"")
        limit = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=3 * KEEPALIVE_SECONDS)
        with self._translated():
            async with self._open.get(self._url(target), headers=headers, timeout=limit) as response:
                await self._check(response)
                while line := await response.content.readline():
                    if line.strip():
                        yield Command.model_validate_json(line)
        raise UnavailableError(f"Control at {self.base} ended the command stream.")

    async def _post_signed(self, target: str, body: bytes, kind: str = "application/json") -> bytes:
        return await self._post(target, body, self._signature("POST", target, body), kind)

    async def _post(
        self, target: str, body: bytes, headers: dict[str, str], kind: str = "application/json"
    ) -> bytes:
        with self._translated():
            async with self._open.post(
                self._url(target), data=body, headers={**headers, "Content-Type": kind}, allow_redirects=False
            ) as response:
                await self._check(response)
                return await response.content.read(_MOST_ANSWER)

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raise what control says is wrong with a request."""
        if response.status < 300:
            return
        try:
            body = await response.json(content_type=None)
        except ValueError:
            body = None
        raise error_of(response.status, body)

    def _signature(self, method: str, target: str, body: bytes) -> dict[str, str]:
        if self.node_id is None:
            raise UnauthorizedError("This node has not joined yet.")
        return self._key.headers(self.node_id, method, target, body, int(time.time()))

    def _url(self, target: str) -> URL:
        return URL(self.base + target, encoded=True)

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used inside its context only")
        return self._session

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise DeadlineError(f"Control at {self.base} does not answer in time.") from error
        except ValidationError as error:
            raise UnavailableError(f"What answers at {self.base} is not control.") from error
        except (aiohttp.ClientError, ValueError) as error:
            words = str(error) or type(error).__name__
            raise UnavailableError(f"Control at {self.base} cannot be reached: {words}.") from error


def read_token(path: Path) -> str:
    """Return the join token in a file; raise UnauthorizedError where there is none to read."""
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise UnauthorizedError(
            f"The join token cannot be read from {path}: {error.strerror}.",
            remedy="Use the command that `gpupool node add` prints, or copy keys/join.token from control's state folder.",
        ) from error
    if not token or not token.isascii() or not token.isprintable():
        raise UnauthorizedError(
            f"The file {path} holds no join token.",
            remedy="Copy keys/join.token from control's state folder.",
        )
    return token
