"""The link to a validator's broadcasts, which is made again for ever: after a failure, a refusal, a silence.

Source: chutes.md section 2.5. News that came while the link was down are lost, so each link that comes up says so: whoever
listens compares with the lists then. One news after the other is handed over; while that takes time, more of them wait,
and beyond a limit the oldest give way to a comparison too.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import aiohttp
import socketio  # type: ignore[import-untyped]
import structlog
from socketio.exceptions import SocketIOError  # type: ignore[import-untyped]

from gpupool.core.errors import DeadlineError, GpupoolError, UnauthorizedError, UnavailableError
from gpupool.validators.chutes import signing
from gpupool.validators.chutes.events import ValidatorNews, understood

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
STEADY_SECONDS: Final = 60.0
"""A link that has held so long was a good one: the next pause is short again."""
CONNECT_SECONDS: Final = 15.0
AUTHENTICATE_SECONDS: Final = 15.0
CLOSE_SECONDS: Final = 3.0
MOST_WAITING: Final = 2_000
_LOG: Final = structlog.get_logger(__name__)


class Link:
    """Listens to one validator."""

    def __init__(
        self,
        name: str,
        url: str,
        signer: signing.Signer,
        *,
        on_news: Callable[[ValidatorNews], Awaitable[None]],
        on_gap: Callable[[], Awaitable[None]],
        now: Callable[[], float] = time.time,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        """``on_gap`` is called whenever news may have been lost, ``on_news`` with each that came."""
        self.trouble: str | None = "it was not tried yet"
        """Why the link is down; None while it is up."""
        self.passed_over = 0
        """Broadcasts that said nothing to us."""
        self._name, self._url, self._signer, self._now = name, url, signer, now
        self._on_news, self._on_gap = on_news, on_gap
        self._first_pause = first_pause
        self._waiting: deque[ValidatorNews] = deque()
        self._gap = False
        self._something = asyncio.Event()

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        handing_over = asyncio.create_task(self._hand_over())
        try:
            await self._keep_up()
        finally:
            handing_over.cancel()
            with suppress(asyncio.CancelledError):
                await handing_over

    async def _keep_up(self) -> None:
        pause = self._first_pause
        while True:
            begun = time.monotonic()
            try:
                await self._listen()
                trouble: GpupoolError = UnavailableError("the validator ended the link")
            except GpupoolError as error:
                trouble = error
            self.trouble = trouble.message
            if time.monotonic() - begun > STEADY_SECONDS:
                pause = self._first_pause
            _LOG.warning(
                "validator.link_down", validator=self._name, why=trouble.message, again_in=round(pause, 1)
            )
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _listen(self) -> None:
        """Connect, authenticate, and listen until the link ends."""
        # The library leaves a session of its own open where it cannot connect.
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=True) as session:
            await self._listen_in(socketio.AsyncClient(reconnection=False, http_session=session))

    async def _listen_in(self, client: Any) -> None:
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        client.on("auth_success", lambda *_: _settle(answer, None))
        client.on("auth_failed", lambda *told: _settle(answer, _words(told)))
        client.on("disconnect", lambda *_: _settle(answer, "it closed the link"))
        client.on("miner_broadcast", self._take)
        try:
            await self._connect(client)
            headers = signing.signed_headers(self._signer, self._now(), purpose=signing.SOCKETS)
            await client.emit("authenticate", headers)
            refused = await asyncio.wait_for(answer, AUTHENTICATE_SECONDS)
            if refused is not None:
                raise UnauthorizedError(
                    f"The validator at {self._url} refuses this hotkey: {refused}.",
                    remedy="Check that the hotkey is registered with it, and this machine's clock.",
                )
            self.trouble = None
            _LOG.info("validator.linked", validator=self._name)
            self._note_gap()
            await _until_over(client)
        except TimeoutError as error:
            raise DeadlineError(f"The validator at {self._url} did not answer in time.") from error
        except SocketIOError as error:
            raise UnavailableError(f"The link to {self._url} broke: {error}.") from error
        finally:
            # The library waits for its queue to empty, which it never does where the other side is gone.
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await client.shutdown()

    async def _connect(self, client: Any) -> None:
        try:
            await client.connect(self._url, transports=["websocket"], wait_timeout=CONNECT_SECONDS)
        except (SocketIOError, OSError, ValueError) as error:
            raise UnavailableError(
                f"The validator's events at {self._url} cannot be reached: {error}."
            ) from error

    def _take(self, message: object = None, *_: object) -> None:
        news = understood(message)
        if isinstance(news, str):
            self.passed_over += 1
            _LOG.debug("validator.news_passed_over", validator=self._name, why=news)
            return
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.clear()
            self._gap = True
        self._waiting.append(news)
        self._something.set()

    def _note_gap(self) -> None:
        self._gap = True
        self._something.set()

    async def _hand_over(self) -> None:
        """Hand news over one after the other; what cannot be taken is made up for by the next comparison."""
        while True:
            await self._something.wait()
            self._something.clear()
            while self._gap or self._waiting:
                try:
                    if self._gap:
                        self._gap = False
                        await self._on_gap()
                    else:
                        await self._on_news(self._waiting.popleft())
                except GpupoolError as error:
                    _LOG.warning("validator.news_not_taken", validator=self._name, why=error.message)


async def _until_over(client: Any) -> None:
    """Wait for the end of a link. Awaited directly, the library's own task would swallow a cancellation meant for us."""
    over = asyncio.ensure_future(client.wait())
    try:
        await asyncio.wait({over})
    finally:
        over.cancel()


def _settle(answer: "asyncio.Future[str | None]", value: str | None) -> None:
    if not answer.done():
        answer.set_result(value)


def _words(told: tuple[object, ...]) -> str:
    first = told[0] if told else None
    words = first.get("error") if isinstance(first, dict) else first
    return str(words or "no reason was given")[:200]
