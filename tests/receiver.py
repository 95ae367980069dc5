"""A real HTTP receiver of messages on this machine: what it got, and whether it takes them."""

import asyncio
import json
from typing import Any, Self

from aiohttp import web


class Receiver:
    """Takes JSON by POST. Use as an async context manager."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.status = 200
        self.hold: asyncio.Event | None = None
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.hold is not None:
            self.hold.set()
        assert self._runner is not None
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.hold is not None:
            await self.hold.wait()
        if self.status == 200:
            self.paths.append(request.path)
            self.got.append(json.loads(body))
        return web.Response(status=self.status)

    @property
    def titles(self) -> list[str]:
        """The titles of what it took, without who sent it."""
        return [str(message["title"]).partition(": ")[2] for message in self.got]
