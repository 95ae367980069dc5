"""The HTTP server of control: uvicorn with a bounded request head and an end that streams do not hold up."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gpupool.core.listening import BACKLOG

MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_SECONDS: Final = 20.0
"""How long a connection may take to say what it wants."""
KEEP_ALIVE_SECONDS: Final = 75
"""How long an idle connection is kept: well beyond the agents' heartbeats, so that none meets a closing one."""
GRACE_SECONDS: Final = 5
WHEN_LOST: Final = "gpupool.when_lost"
"""Key of a request's scope under which lies a list of what is to be called when its connection is lost."""


class BoundedHead(HttpToolsProtocol):
    """Ends a connection whose request head does not come to an end: before it fills the memory, and in good time."""

    head_seconds = HEAD_SECONDS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._in_head = True
        self._patience: asyncio.TimerHandle | None = None
        self._when_lost: list[Callable[[], object]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A first request is expected."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more is expected."""
        self._head_has_come()
        super().connection_lost(exc)
        while self._when_lost:
            self._when_lost.pop()()
        # It knows this connection, too: without this, only a search for garbage would find them.
        self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Feed the parser; beyond the limit answer 400, with it, and close."""
        if self._in_head:
            self._head_bytes += len(data)
            self._expect_head()
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The request's head is larger than {MAX_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        """The head has come to its end."""
        self._head_has_come()
        self.scope[WHEN_LOST] = self._when_lost  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next bytes are a new head."""
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Forget the request: ten thousand connections that wait for the next one would keep as many."""
        super().on_response_complete()
        cycle: RequestResponseCycle | None = self.cycle
        # Where the next head is on its way already, scope and headers are its own.
        if (
            cycle is not None
            and cycle.response_complete
            and not cycle.more_body
            and self.scope is cycle.scope
        ):
            self.cycle = self.scope = self.headers = None  # type: ignore[assignment]

    def _expect_head(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(self.head_seconds, self.transport.close)

    def _head_has_come(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class ControlServer(uvicorn.Server):
    """A server that leaves signals to the process and says when it listens."""

    def __init__(
        self, app: ASGIApp, on_listening: Callable[[], None], head_seconds: float | None = None
    ) -> None:
        """``head_seconds``: how long a connection may take to say what it wants; left out, `HEAD_SECONDS`."""
        patience = {} if head_seconds is None else {"head_seconds": head_seconds}
        super().__init__(
            uvicorn.Config(
                app,
                http=type("BoundedHead", (BoundedHead,), patience),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GRACE_SECONDS,
                proxy_headers=False,
            )
        )
        self._on_listening = on_listening

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self._on_listening()
