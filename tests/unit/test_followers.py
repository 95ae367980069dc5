"""Those who follow control: answers that come twice, out of order, torn or not at all never take them back.

The events' follower shows each event once and in order; the feed's follower and the router behind it hold exactly
what the last good answer said; and a process' own view of its changes only ever grows.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fleet_samples import NOON, new_database
from gpupool.cli.main import app
from gpupool.contracts.control import EventView
from gpupool.contracts.feed import EndpointsView, FeedEndpoint, FeedWorkload
from gpupool.contracts.feed_client import Backoff, FeedFollower
from gpupool.control.changes import Changes
from gpupool.control.pool import Pool
from gpupool.core.clock import FakeClock
from gpupool.fleet.endpoints import EndpointHealth
from gpupool.fleet.workloads import Protocol
from gpupool.gateway.routing import Router, Upstream
from gpupool.store.open import open_store

PATIENCE = 30.0
MODELS = ("small", "large")


class LineCutError(Exception):
    """The script of answers is over."""


class Unsteady:
    """A control whose log of events is whole, and whose answers are not."""

    def __init__(self, last: int, faults: list[tuple[int, int, int]]) -> None:
        self.log = [
            EventView(seq=seq, kind="node.ready", subject=f"n-{seq}", at=NOON, data={})
            for seq in range(1, last + 1)
        ]
        self.faults = faults

    def pool(self) -> SimpleNamespace:
        """Return as much of the pool's view as the follower asks for."""
        return SimpleNamespace(last_event_seq=len(self.log))

    def events(
        self, after: int = 0, limit: int = 100, wait: float = 0.0, *, by: str | None, latest: bool
    ) -> list[EventView]:
        """Return what follows ``after``, cut short, with older ones again, and turned round."""
        assert wait > 0
        assert (by, latest) == (None, False)
        fresh = [event for event in self.log if event.seq > after][:limit]
        if not self.faults:
            if fresh:
                return fresh
            raise LineCutError
        kept, again, turn = self.faults.pop()
        answer = self.log[max(0, after - again) : after] + fresh[:kept] + fresh[: min(kept, again)]
        turn %= len(answer) or 1
        return answer[turn:] + answer[:turn]


@settings(max_examples=50, derandomize=True)
@given(
    last=st.integers(0, 12),
    after=st.integers(0, 5),
    faults=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 9)), max_size=8),
)
def test_every_event_is_shown_once_and_in_order(
    last: int, after: int, faults: list[tuple[int, int, int]]
) -> None:
    @contextmanager
    def connect(_: str | None) -> Iterator[Unsteady]:
        yield Unsteady(last, faults)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gpupool.cli.events.connect", connect)
        done = CliRunner().invoke(app, ["events", "--follow", "--json", "--after", str(after)])
    assert isinstance(done.exception, LineCutError)
    shown = [EventView.model_validate_json(line).seq for line in done.stdout.splitlines()]
    assert shown == list(range(after + 1, last + 1))


def endpoint(name: int, model: str, state: str) -> FeedEndpoint:
    """Return an endpoint of one model."""
    return FeedEndpoint.model_validate(
        {
            "id": f"ep-{name}",
            "placement": f"pl-{name}",
            "node": "n-1",
            "workload": f"wl-{model}",
            "models": [model],
            "protocol": Protocol.OPENAI,
            "address": f"10.0.0.1:{30_000 + name}",
            "state": state,
            "health": EndpointHealth.OK,
        }
    )


def a_view(revision: int, endpoints: list[FeedEndpoint]) -> EndpointsView:
    """Return a complete view with these endpoints, one of each id."""
    return EndpointsView(
        revision=revision,
        workloads=[
            FeedWorkload(id=f"wl-{model}", name=model, models=[model], wanted=1, state="active", created_at=1)
            for model in MODELS
        ],
        endpoints=list({found.id: found for found in endpoints}.values()),
    )


endpoints = st.builds(
    endpoint, st.integers(1, 4), st.sampled_from(MODELS), st.sampled_from(("active", "draining"))
)
views = st.builds(a_view, st.integers(1, 5), st.lists(endpoints, max_size=4))


def routes(router: Router) -> dict[str, set[str]]:
    """Return who may be chosen for each model, by asking until nobody is left."""
    found: dict[str, set[str]] = {}
    for model in MODELS:
        tried: list[Upstream] = []
        while (chosen := router.choose(model, tried)) is not None:
            tried.append(chosen)
        found[model] = {f"{one.endpoint.id} {one.endpoint.address}" for one in tried}
    return found


@settings(derandomize=True)
@given(st.lists(views, min_size=1, max_size=6))
def test_a_router_routes_by_the_last_view_whatever_came_before(history: list[EndpointsView]) -> None:
    router, fresh = Router(), Router()
    for view in history:
        for _ in range(2):
            router.update(view)
    fresh.update(history[-1])
    assert routes(router) == routes(fresh)
    assert router.models() == fresh.models()


bad = st.sampled_from(
    (
        lambda: web.Response(status=503, text="oops"),
        lambda: web.Response(text='{"revision": 9}'),
        lambda: web.Response(text=""),
        lambda: web.Response(text=a_view(9, []).model_copy(update={"complete": False}).model_dump_json()),
    )
)


@asynccontextmanager
async def scripted(
    answers: list[EndpointsView | Callable[[], web.Response]],
) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Serve the answers one after another; the event is set when they are all given."""
    script, given_all = list(answers), asyncio.Event()

    async def handle(_: web.Request) -> web.StreamResponse:
        if not script:
            given_all.set()
            await asyncio.Event().wait()
        step = script.pop(0)
        return web.Response(text=step.model_dump_json()) if isinstance(step, EndpointsView) else step()

    serving = web.Application()
    serving.router.add_get("/v1/endpoints", handle)
    runner = web.AppRunner(serving, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", given_all
    finally:
        await runner.cleanup()


async def follow(answers: list[EndpointsView | Callable[[], web.Response]], token: Path) -> None:
    """Follow the answers to their end, and compare with what was good in them."""
    taken: list[EndpointsView] = []
    async with asyncio.timeout(PATIENCE), scripted(answers) as (url, given_all):
        quick = Backoff(0.0001, 0.0002)
        follower = FeedFollower(url, Protocol.OPENAI, token, on_view=taken.append, backoff=quick)
        task = asyncio.create_task(follower.run())
        await given_all.wait()
        task.cancel()
        await asyncio.wait([task])
    good = [answer for answer in answers if isinstance(answer, EndpointsView)]
    assert taken == [view for index, view in enumerate(good) if index == 0 or view != good[index - 1]]
    assert follower.view == (good[-1] if good else None)


@settings(max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answers=st.lists(st.one_of(views, views, bad), max_size=8), copies=st.integers(1, 2))
def test_a_feed_is_followed_from_one_good_answer_to_the_next(
    tmp_path: Path, answers: list[EndpointsView | Callable[[], web.Response]], copies: int
) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    asyncio.run(follow([answer for answer in answers for _ in range(copies)], token))


@settings(derandomize=True)
@given(st.lists(st.none() | st.integers(0, 20), max_size=20))
def test_the_number_of_the_newest_change_never_falls(announced: list[int | None]) -> None:
    changes = Changes()
    for seq in announced:
        before = (changes.seq, changes.count)
        changes.announce(seq)
        assert changes.seq >= before[0]
        assert changes.count > before[1]
    assert changes.seq == max([0, *(seq for seq in announced if seq is not None)])


async def test_views_never_go_back_while_many_write_and_look(tmp_path: Path) -> None:
    store = await open_store(new_database(tmp_path))
    pool = Pool(store, FakeClock(NOON))

    async def write(name: str) -> None:
        for _ in range(10):
            async with pool.change() as change:
                await change.emit("node.connected", name)
            assert (await pool.snapshot()).seq >= (change.last_seq or 0)

    async def look() -> None:
        seen = 0
        while seen < 40:
            count = pool.changes.count
            seq = (await pool.snapshot()).seq
            assert seq >= seen
            seen = seq
            if seen < 40:
                await pool.changes.after(count, PATIENCE)

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(write(f"n-{index}") for index in range(4)), look(), look())
    await store.close()
