"""Follows the endpoints feed for whoever routes by it: gateway, recompute proxy, solver front.

The last complete view stays in force whatever happens to control: an answer that is partial, torn, malformed or
refused changes nothing (a failed read is not news). After a failure the next poll asks without a revision, so that a
restarted control, whose revisions may begin anew, answers at once instead of holding the question.
"""

import asyncio
import json
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import structlog
from pydantic import ValidationError

from gpupool.contracts.feed import FOLLOWER_HEADER, EndpointsView
from gpupool.contracts.problems import error_of
from gpupool.core.errors import EnvironmentProblemError, GpupoolError, UnavailableError
from gpupool.fleet.workloads import Protocol

MAX_VIEW_BYTES: Final = 64 * 1024 * 1024
ANSWER_SLACK_SECONDS: Final = 10.0
"""How much longer than the long poll's own wait an answer may take."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growing pauses between failed polls, with jitter so that followers do not return in step."""

    first_seconds: float = 0.2
    limit_seconds: float = 3.0

    def pause(self, failures: int, random_unit: float) -> float:
        """Return the seconds to wait after ``failures`` (>= 1) in a row; ``random_unit`` is in [0, 1).

        The pause doubles up to the limit and lies between half of that and all of it.
        """
        full = min(self.limit_seconds, self.first_seconds * 2.0 ** min(failures - 1, 30))
        return full * (0.5 + 0.5 * random_unit)


class IncompleteViewError(UnavailableError):
    """Control does not yet know everything that can be called."""

    default_remedy = "Wait: control completes its view as soon as its nodes have answered."


class FeedFollower:
    """Keeps the newest complete view of one protocol; `run` follows the feed until cancelled."""

    def __init__(
        self,
        control_url: str,
        protocol: Protocol,
        token_file: Path,
        *,
        on_view: Callable[[EndpointsView], None] = lambda view: None,
        wait_seconds: float = 25.0,
        backoff: Backoff | None = None,
    ) -> None:
        """``on_view`` is called in the event loop with every new complete view."""
        self._url = f"{control_url.rstrip('/')}/v1/endpoints"
        self._protocol = protocol
        self._token_file = token_file
        self._on_view = on_view
        self._wait_seconds = wait_seconds
        self._follower = f"{protocol}.{socket.gethostname()[:70]}"
        self._backoff = backoff or Backoff()
        self._ready = asyncio.Event()
        self._failures = 0
        self.view: EndpointsView | None = None
        """The newest complete view; None until the first one."""
        self.trouble: str | None = None
        """Why the last poll brought nothing, in words; None while the feed is fine."""

    async def wait_ready(self) -> None:
        """Return once the first complete view is here."""
        await self._ready.wait()

    async def run(self) -> None:
        """Follow the feed until cancelled; failures are logged once each and never raised."""
        timeout = aiohttp.ClientTimeout(total=self._wait_seconds + ANSWER_SLACK_SECONDS, sock_connect=5)
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
            while True:
                try:
                    news = await self._poll(session)
                except GpupoolError as error:
                    self._fail(error)
                    await asyncio.sleep(self._pause(error))
                    continue
                self._recover()
                if not news:
                    await asyncio.sleep(self._backoff.first_seconds)

    async def _poll(self, session: aiohttp.ClientSession) -> bool:
        """Ask once and take what came; return whether it was news."""
        view = await self._ask(session)
        if not view.complete:
            raise IncompleteViewError
        if view == self.view:
            return False
        self.view = view
        self._on_view(view)
        self._ready.set()
        return True

    async def _ask(self, session: aiohttp.ClientSession) -> EndpointsView:
        parameters = {"protocol": str(self._protocol)}
        if self.view is not None and not self._failures:
            parameters |= {"after": str(self.view.revision), "wait": f"{self._wait_seconds:g}"}
        headers = {"Authorization": f"Bearer {self._token()}", FOLLOWER_HEADER: self._follower}
        try:
            async with session.get(
                self._url, params=parameters, headers=headers, allow_redirects=False
            ) as reply:
                body = await _read(reply)
                if reply.status != 200:
                    raise error_of(reply.status, _json_or_none(body))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(
                f"The endpoints feed at {self._url} cannot be read: {_why(error)}."
            ) from error
        try:
            return EndpointsView.model_validate_json(body)
        except ValidationError as error:
            raise UnavailableError(f"The answer of {self._url} is not an endpoints view.") from error

    def _token(self) -> str:
        """Read anew each time, so that a token made or changed later is taken without a restart."""
        try:
            return self._token_file.read_text().strip()
        except OSError as error:
            raise EnvironmentProblemError(
                f"The token file {self._token_file} cannot be read: {error.strerror}.",
                remedy="Start control first (it makes the file), or name the right file.",
            ) from error

    def _fail(self, error: GpupoolError) -> None:
        self._failures += 1
        if error.message != self.trouble:
            self.trouble = error.message
            log.warning("feed_lost", url=self._url, why=error.message, remedy=error.remedy)

    def _recover(self) -> None:
        if self.trouble is not None:
            log.info("feed_back", url=self._url, failures=self._failures)
        self._failures, self.trouble = 0, None

    def _pause(self, error: GpupoolError) -> float:
        """A control that answers needs no growing pauses: its view is complete within moments."""
        failures = 1 if isinstance(error, IncompleteViewError) else self._failures
        return self._backoff.pause(failures, random.random())


async def _read(reply: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in reply.content.iter_any():
        body += chunk
        if len(body) > MAX_VIEW_BYTES:
            raise UnavailableError(f"The endpoints feed is larger than {MAX_VIEW_BYTES} bytes.")
    return bytes(body)


def _why(error: aiohttp.ClientError | TimeoutError) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return (error.os_error.strerror or "no connection").lower()
    return str(error) or "no answer in time"


def _json_or_none(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return None
