"""A gateway on real sockets between a scripted control (the endpoints feed) and scripted OpenAI servers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from gpupool.contracts.feed import EndpointsView, FeedEndpoint, FeedWorkload
from gpupool.contracts.feed_client import FeedFollower
from gpupool.core.listening import bind
from gpupool.fleet.endpoints import EndpointHealth
from gpupool.fleet.workloads import Protocol
from gpupool.gateway.access import KeyCheck
from gpupool.gateway.main import gateway
from gpupool.gateway.settings import GatewaySettings

MODEL = "tiny"
SERVICE_TOKEN = "service-secret"
PATIENCE = 10.0
Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


def reply_object(model: str = "/models/tiny.gguf", text: str = "Hello") -> dict[str, Any]:
    """A chat completion as an upstream that knows its model under another name sends it."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def chunk(text: str, model: str = "/models/tiny.gguf") -> bytes:
    """One event of a streamed chat completion."""
    value = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
    }
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def answer_json(_: web.Request) -> web.StreamResponse:
    """Answer with one whole completion."""
    return web.json_response(reply_object())


async def begin_stream(request: web.Request) -> web.StreamResponse:
    """Send the head of an event stream."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def endpoint(name: str, address: str, **changes: Any) -> FeedEndpoint:
    """An active, healthy endpoint of the model."""
    values: dict[str, Any] = {
        "id": f"ep-{name}",
        "placement": f"pl-{name}",
        "node": "node-1",
        "workload": "wl-1",
        "models": [MODEL],
        "protocol": Protocol.OPENAI,
        "address": address,
        "state": "active",
        "health": EndpointHealth.OK,
    }
    return FeedEndpoint(**values | changes)


def workload(**changes: Any) -> FeedWorkload:
    """The workload that offers the model."""
    values: dict[str, Any] = {
        "id": "wl-1",
        "name": "tiny-chat",
        "models": [MODEL],
        "wanted": 1,
        "state": "active",
        "created_at": 1700000000.5,
    }
    return FeedWorkload(**values | changes)


@dataclass
class Upstream:
    """A scripted model server: does what ``behave`` says and remembers what it was asked."""

    behave: Behaviour = answer_json
    asked: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; note it when the asker leaves before the end."""
        self.bodies.append(await request.read())
        self.asked.append(request)
        try:
            return await self.behave(request)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class Feed:
    """A scripted control that serves the endpoints feed by long poll, or fails as told."""

    def __init__(self, view: EndpointsView) -> None:
        self.view = view
        self.status = 200
        self.tokens: list[str] = []
        self.polls = 0
        self._changed = asyncio.Event()

    def change(self, *, status: int = 200, **changes: Any) -> None:
        """Publish a changed view (with the next revision), or fail with ``status`` from now on."""
        self.status = status
        if changes:
            self.view = self.view.model_copy(update={"revision": self.view.revision + 1, **changes})
        self._changed.set()
        self._changed = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one poll."""
        self.polls += 1
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.status == 200 and request.query.get("after") == str(self.view.revision):
            try:
                async with asyncio.timeout(float(request.query.get("wait", "0"))):
                    await self._changed.wait()
            except TimeoutError:
                pass  # Nothing new: answer with the same revision.
        if self.status != 200:
            return web.Response(status=self.status, text="no")
        return web.Response(text=self.view.model_dump_json(), content_type="application/json")


@dataclass
class Stage:
    """Everything of one test."""

    url: str
    upstreams: list[Upstream]
    feed: Feed
    follower: FeedFollower
    http: aiohttp.ClientSession

    @property
    def upstream(self) -> Upstream:
        """The first model server."""
        return self.upstreams[0]

    def chat(self, **fields: Any) -> Any:
        """POST a chat completion; use as an async context manager."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}
        return self.http.post(f"{self.url}/v1/chat/completions", json=body)


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Serve ``app`` on a free loopback port; give ``host:port``."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def upstream_server(upstream: Upstream) -> AsyncIterator[Upstream]:
    """Serve a scripted model server."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", upstream.handle)
    async with serving(app) as address:
        upstream.address = address
        yield upstream


@asynccontextmanager
async def feed_server(feed: Feed) -> AsyncIterator[str]:
    """Serve a scripted feed; give its address as a URL."""
    app = web.Application()
    app.router.add_get("/v1/endpoints", feed.handle)
    async with serving(app) as address:
        yield f"http://{address}"


@asynccontextmanager
async def stage(
    tmp_path: Path,
    *behaviours: Behaviour,
    view: EndpointsView | None = None,
    key: str | None = None,
    await_view: bool = True,
    **settings: Any,
) -> AsyncIterator[Stage]:
    """Set everything up: a model server for each behaviour, a feed that lists them, and the gateway."""
    token_file = tmp_path / "service.token"
    token_file.write_text(SERVICE_TOKEN + "\n")
    async with AsyncExitStack() as stack:
        upstreams = [
            await stack.enter_async_context(upstream_server(Upstream(behaviour))) for behaviour in behaviours
        ]
        listed = [endpoint(str(index), upstream.address) for index, upstream in enumerate(upstreams)]
        feed = Feed(view or EndpointsView(revision=1, workloads=[workload()], endpoints=listed))
        control_url = await stack.enter_async_context(feed_server(feed))
        given = GatewaySettings(
            home=tmp_path,
            gateway_port=0,
            gateway_token_file=token_file,
            control_url=control_url,
            gateway_drain_seconds=0,
            **settings,
        )
        listener = stack.enter_context(bind("the gateway", "127.0.0.1", 0, "GPUPOOL_GATEWAY"))
        follower, port = await stack.enter_async_context(gateway(given, KeyCheck(key), "inst-test", listener))
        following = asyncio.create_task(follower.run())
        stack.callback(following.cancel)
        if await_view:
            async with asyncio.timeout(PATIENCE):
                await follower.wait_ready()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Stage(f"http://127.0.0.1:{port}", upstreams, feed, follower, http)
