"""The feed's follower keeps its view through every kind of bad answer, and takes the next good one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gpupool.contracts.feed import EndpointsView, FeedWorkload
from gpupool.contracts.feed_client import Backoff, FeedFollower
from gpupool.fleet.workloads import Protocol
from polling import eventually

PATIENCE = 10.0


def view(revision: int, **changes: Any) -> EndpointsView:
    return EndpointsView(revision=revision, workloads=[], endpoints=[], **changes)


def good(answer: EndpointsView) -> web.Response:
    return web.Response(text=answer.model_dump_json(), content_type="application/json")


class Control:
    """Answers polls from a script; after its end it holds every poll until the test is over."""

    def __init__(
        self, *script: Callable[[web.Request], Awaitable[web.StreamResponse]] | web.Response
    ) -> None:
        self.script = list(script)
        self.asked: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.exhausted = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        self.tokens.append(request.headers["Authorization"])
        if not self.script:
            self.exhausted.set()
            await asyncio.Event().wait()
        step = self.script.pop(0)
        return step if isinstance(step, web.Response) else await step(request)


@asynccontextmanager
async def following(control: Control, token_file: Path) -> AsyncIterator[tuple[FeedFollower, list[int]]]:
    """Follow ``control``; give the follower and the revisions that it took."""
    app = web.Application()
    app.router.add_get("/v1/endpoints", control.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    taken: list[int] = []
    follower = FeedFollower(
        f"http://127.0.0.1:{runner.addresses[0][1]}/",
        Protocol.OPENAI,
        token_file,
        on_view=lambda news: taken.append(news.revision),
        wait_seconds=20,
        backoff=Backoff(0.001, 0.002),
    )
    task = asyncio.create_task(follower.run())
    try:
        yield follower, taken
    finally:
        task.cancel()
        await asyncio.wait([task])
        await runner.cleanup()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


async def torn(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"revision": 9,')
    assert request.transport is not None
    request.transport.abort()
    return response


async def redirect(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/elsewhere")


@pytest.mark.parametrize(
    "bad",
    [
        lambda: good(view(9, complete=False)),
        lambda: web.Response(status=500, text="oops"),
        lambda: web.Response(status=401, text='{"title":"t","status":401,"code":"unauthorized"}'),
        lambda: web.Response(text=""),
        lambda: web.Response(text="<html>"),
        lambda: web.Response(text='{"revision": 9}'),
        lambda: torn,
        lambda: redirect,
    ],
)
async def test_a_bad_answer_changes_nothing_and_the_next_good_one_is_taken(
    token_file: Path, bad: Callable[[], Any]
) -> None:
    control = Control(good(view(5)), bad(), bad(), good(view(3)))
    async with asyncio.timeout(PATIENCE), following(control, token_file) as (follower, taken):
        await control.exhausted.wait()
        assert taken == [5, 3]
        assert follower.view == view(3)
        assert follower.trouble is None


async def test_it_asks_by_long_poll_and_without_a_revision_after_a_failure(token_file: Path) -> None:
    control = Control(good(view(5)), good(view(6)), web.Response(status=503), good(view(6)))
    async with asyncio.timeout(PATIENCE), following(control, token_file):
        await control.exhausted.wait()
    whole, poll = {"protocol": "openai"}, {"protocol": "openai", "wait": "20"}
    assert control.asked == [
        whole,
        poll | {"after": "5"},
        poll | {"after": "6"},
        whole,
        poll | {"after": "6"},
    ]


async def test_a_view_that_changed_under_the_same_revision_is_news(token_file: Path) -> None:
    """As after a restart of control, when nodes are awaited in vain: no event, but fewer endpoints."""
    workload = FeedWorkload(id="w", name="w", models=[], wanted=1, state="starting", created_at=1.0)
    changed = view(5).model_copy(update={"workloads": [workload]})
    control = Control(good(view(5)), web.Response(status=503), good(view(5, complete=False)), good(changed))
    async with asyncio.timeout(PATIENCE), following(control, token_file) as (follower, taken):
        await control.exhausted.wait()
        assert taken == [5, 5]
        assert follower.view == changed


async def test_the_same_view_is_no_news(token_file: Path) -> None:
    control = Control(good(view(5)), good(view(5)), good(view(5)))
    async with asyncio.timeout(PATIENCE), following(control, token_file) as (_, taken):
        await control.exhausted.wait()
        assert taken == [5]


async def test_trouble_is_told_while_it_lasts(token_file: Path) -> None:
    failed = asyncio.Event()

    async def hold(_: web.Request) -> web.StreamResponse:
        failed.set()
        await asyncio.Event().wait()
        return web.Response()

    control = Control(web.Response(status=500), hold)
    async with asyncio.timeout(PATIENCE), following(control, token_file) as (follower, _):
        await failed.wait()
        assert follower.view is None
        assert "500" in (follower.trouble or "")


async def test_the_token_is_read_anew_and_may_come_late(token_file: Path) -> None:
    await asyncio.to_thread(token_file.unlink)
    control = Control(web.Response(status=401), good(view(1)))
    async with asyncio.timeout(PATIENCE), following(control, token_file) as (follower, _):
        await eventually(lambda: follower.trouble)
        assert str(token_file) in (follower.trouble or "")
        assert control.asked == []
        await asyncio.to_thread(token_file.write_text, "late\n")
        await follower.wait_ready()
    assert set(control.tokens) == {"Bearer late"}


async def test_nobody_listening_is_trouble_too(token_file: Path, free_port: int) -> None:
    follower = FeedFollower(f"http://127.0.0.1:{free_port}", Protocol.OPENAI, token_file)
    task = asyncio.create_task(follower.run())
    async with asyncio.timeout(PATIENCE):
        await eventually(lambda: follower.trouble)
    task.cancel()
    await asyncio.wait([task])
    assert str(free_port) in (follower.trouble or "")


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_to_the_limit_and_jitter_within_half(failures: int, unit: float) -> None:
    backoff = Backoff(0.2, 10.0)
    full = backoff.pause(failures, 1.0)
    assert full == min(10.0, 0.2 * 2 ** min(failures - 1, 30))
    assert full / 2 <= backoff.pause(failures, unit) <= full
