"""News for miners over socket.io: who has shown a hotkey hears what happens, and what happened to its own.

Source: chutes.md section 2.5. A session that has not authenticated hears nothing; of a miner's sessions the newest one gets
what is meant for it alone. What is lost on the way is healed by the miners' own comparison with the lists, so nothing is
kept for those who are away.
"""

import asyncio
from typing import Any, Final

import socketio  # type: ignore[import-untyped]
import structlog

from gpupool.core.errors import GpupoolError
from gpupool.market.http.identity import Identity
from gpupool.market.state import Market, News
from gpupool.validators.chutes.signing import SOCKETS

_LOG: Final = structlog.get_logger(__name__)
_EVERYBODY: Final = "miners"
_EVENT: Final = "miner_broadcast"
AUTHENTICATE_SECONDS: Final = 20.0
MOST_BYTES: Final = 64 * 1024


class Broadcaster:
    """The socket.io side of one market."""

    def __init__(self, market: Market, identity: Identity) -> None:
        self._identity = identity
        self._server = socketio.AsyncServer(
            async_mode="asgi",
            transports=["websocket"],
            cors_allowed_origins=[],
            max_http_buffer_size=MOST_BYTES,
            ping_interval=20,
            ping_timeout=20,
        )
        self._news: asyncio.Queue[News] = asyncio.Queue()
        self._newest: dict[str, str] = {}
        self._hotkeys: dict[str, str] = {}
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        market.listeners.append(self._news.put_nowait)
        self._server.on("connect", self._connected)
        self._server.on("authenticate", self._authenticate)
        self._server.on("disconnect", self._left)

    def around(self, app: Any) -> Any:
        """Return an ASGI application that serves socket.io, and everything else by ``app``."""
        return socketio.ASGIApp(self._server, other_asgi_app=app)

    @property
    def sessions(self) -> int:
        """Sessions that have authenticated."""
        return len(self._hotkeys)

    async def run(self) -> None:
        """Pass news on, in order, until cancelled."""
        while True:
            news = await self._news.get()
            message = {"reason": news.reason, "data": dict(news.data)}
            if news.hotkey is None:
                await self._server.emit(_EVENT, message, room=_EVERYBODY)
            elif news.hotkey in self._newest:
                await self._server.emit(_EVENT, message, to=self._newest[news.hotkey])

    async def _connected(self, sid: str, _: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[sid] = loop.call_later(
            AUTHENTICATE_SECONDS, lambda: loop.create_task(self._server.disconnect(sid))
        )

    async def _authenticate(self, sid: str, headers: object = None) -> None:
        try:
            plain = (
                {str(name).lower(): str(value) for name, value in headers.items()}
                if isinstance(headers, dict)
                else {}
            )
            hotkey = self._identity.miner(plain, purpose=SOCKETS)
        except GpupoolError as error:
            await self._server.emit("auth_failed", {"error": error.message}, to=sid)
            await self._server.disconnect(sid)
            return
        self._stop_waiting(sid)
        self._hotkeys[sid] = hotkey
        self._newest[hotkey] = sid
        await self._server.enter_room(sid, _EVERYBODY)
        await self._server.emit("auth_success", {"message": "authenticated"}, to=sid)
        _LOG.info("miner.connected", hotkey=hotkey)

    async def _left(self, sid: str, *_: object) -> None:
        self._stop_waiting(sid)
        hotkey = self._hotkeys.pop(sid, None)
        if hotkey is not None and self._newest.get(hotkey) == sid:
            others = [other for other, owner in self._hotkeys.items() if owner == hotkey]
            if others:
                self._newest[hotkey] = others[-1]
            else:
                del self._newest[hotkey]

    def _stop_waiting(self, sid: str) -> None:
        timer = self._waiting.pop(sid, None)
        if timer is not None:
            timer.cancel()
