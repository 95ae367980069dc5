"""What controls expect of every bus: news reach each subscriber in order, and a bus that is lost says so."""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from fleet_samples import an_event
from gpupool.bus.memory import MemoryBus
from gpupool.bus.notify import NotifyBus
from gpupool.bus.redis import RedisBus
from gpupool.core.errors import InvalidInputError, UnavailableError
from gpupool.fleet.ports.bus import Bus, News
from polling import eventually
from postgres_server import PostgresServer
from redis_server import RedisServer


class Ground:
    """A bus, and the server under it."""

    def __init__(self, open_one: Callable[[], Bus], stop: Callable[[], None] | None) -> None:
        self.open_one, self.stop = open_one, stop


@pytest_asyncio.fixture(params=["memory", "redis", "notify"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    with ExitStack() as stack:
        if request.param == "redis":
            server = stack.enter_context(RedisServer(tmp_path))
            yield Ground(lambda: RedisBus(server.url), server.stop)
        elif request.param == "notify":
            postgres = PostgresServer()
            stack.callback(postgres.close)
            postgres.start()
            where = postgres.url("postgres").dsn
            yield Ground(lambda: NotifyBus(where), postgres.stop)
        else:
            shared = MemoryBus()
            yield Ground(lambda: shared, None)


def news(number: int) -> News:
    return News(
        origin="inst-1", seq=number, events=(replace(an_event(), seq=number),), nodes=(f"node-{number}",)
    )


async def test_every_subscriber_hears_everything_in_order(ground: Ground) -> None:
    sender, first, second = ground.open_one(), ground.open_one(), ground.open_one()
    async with first.subscribe("one") as one, second.subscribe("two") as two:
        for number in range(1, 4):
            await sender.publish(news(number))
        for heard in (one, two):
            seen = [await anext(heard) for _ in range(3)]
            assert [(found.origin, found.seq, found.nodes) for found in seen] == [
                ("inst-1", number, (f"node-{number}",)) for number in (1, 2, 3)
            ]
            # A bus too narrow for events says so, and whoever hears it looks them up.
            assert all(found.events is None or found.events[0].seq == found.seq for found in seen)
    for bus in (sender, first, second):
        await bus.close()


async def test_news_too_large_for_the_way_come_without_their_contents(ground: Ground) -> None:
    bus = ground.open_one()
    large = News(origin="inst-1", seq=9, nodes=tuple(f"node-{number}" for number in range(5000)))
    async with bus.subscribe("one") as heard:
        await bus.publish(large)
        seen = await anext(heard)
    assert (seen.seq, seen.nodes in {None, large.nodes}) == (9, True)
    await bus.close()


async def test_a_bus_that_is_lost_says_so(ground: Ground) -> None:
    if ground.stop is None:
        bus = ground.open_one()
        await bus.close()
        with pytest.raises(UnavailableError):
            await bus.publish(news(1))
        return
    bus = ground.open_one()
    await bus.publish(news(1))
    async with bus.subscribe("one") as heard:
        ground.stop()
        with pytest.raises(UnavailableError):
            await anext(heard)
    with pytest.raises(UnavailableError):
        await bus.publish(news(2))
    with pytest.raises(UnavailableError):
        async with bus.subscribe("one"):
            pass
    await bus.close()


async def test_redis_keeps_what_a_reader_had_not_taken_and_survives_being_flushed(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        bus = RedisBus(server.url)
        async with bus.subscribe("one") as heard:
            await bus.publish(news(1))
            assert (await anext(heard)).seq == 1
        await bus.publish(news(2))
        async with bus.subscribe("one") as heard:
            # What was handed out and not acknowledged comes once more; the store knows that it was taken.
            seen = [(await anext(heard)).seq]
            while seen[-1] != 2:
                seen.append((await anext(heard)).seq)
            assert seen in ([2], [1, 2])
            server.flush()
            with pytest.raises(UnavailableError):
                await anext(heard)

        async def back() -> bool:
            async with bus.subscribe("one") as again:
                await bus.publish(news(3))
                return (await anext(again)).seq == 3

        assert await eventually(back, what="news after the flush")
        await bus.close()


@pytest.mark.parametrize("url", ["http://host", "redis://host:port", "nonsense"])
def test_a_url_that_is_none_shows_no_password(url: str) -> None:
    with pytest.raises(InvalidInputError, match="not the URL of a Redis server") as told:
        RedisBus(url)
    assert url not in told.value.message
