"""The link to a real market's broadcasts: what comes through, what is made up for, and that it always comes back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest_asyncio

from gpupool.core.errors import UnavailableError
from gpupool.validators.chutes import link as linking
from gpupool.validators.chutes.events import Reason, ValidatorNews
from gpupool.validators.chutes.link import Link
from gpupool.validators.hotkeys import Hotkey
from market_stage import MINER, OTHER, MarketProcess
from polling import eventually
from up_run import free_ports


class Listener:
    """Notes what a link hands over."""

    def __init__(self, url: str, key: Hotkey = MINER) -> None:
        self.news: list[ValidatorNews] = []
        self.gaps = 0
        self.refusing = False
        self.link = Link("v", url, key, on_news=self._news, on_gap=self._gap, first_pause=0.05)

    async def _news(self, news: ValidatorNews) -> None:
        if self.refusing:
            raise UnavailableError("no database")
        self.news.append(news)

    async def _gap(self) -> None:
        self.gaps += 1

    @property
    def reasons(self) -> list[Reason]:
        return [news.reason for news in self.news]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Listener"]:
        running = asyncio.create_task(self.link.run())
        try:
            yield self
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


@pytest_asyncio.fixture
async def market(tmp_path: Path) -> AsyncIterator[MarketProcess]:
    async with MarketProcess(tmp_path) as running:
        yield running


async def up(listener: Listener, gaps: int = 1) -> None:
    await eventually(
        lambda: listener.link.trouble is None and listener.gaps >= gaps, what="a link that is up"
    )


async def test_what_is_published_is_heard_and_each_link_begins_with_a_comparison(
    market: MarketProcess,
) -> None:
    async with Listener(market.url).listening() as listener:
        await up(listener)
        await market.publish()
        heard = [Reason.IMAGE_CREATED, Reason.CHUTE_CREATED]
        await eventually(lambda: listener.reasons[:2] == heard, what="the news")
        await eventually(lambda: Reason.BOUNTY_CHANGE in listener.reasons, what="a bounty")
    assert listener.gaps == 1


async def test_a_market_that_dies_and_comes_back_is_found_again(market: MarketProcess) -> None:
    port = market.url.rpartition(":")[2]
    market.process.arguments = [*market.process.arguments[:-1], port]
    async with Listener(market.url).listening() as listener:
        await up(listener)
        market.process.kill()
        await eventually(lambda: listener.link.trouble is not None, what="a link that is down")
        await market.start()
        await up(listener, gaps=2)
        await market.publish()
        await eventually(lambda: Reason.CHUTE_CREATED in listener.reasons, what="the news")


async def test_a_link_whose_first_attempt_fails_comes_up_later(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with Listener(f"http://127.0.0.1:{port}").listening() as listener:
        await eventually(
            lambda: "cannot be reached" in (listener.link.trouble or ""), what="a failed attempt"
        )
        late = MarketProcess(tmp_path)
        late.process.arguments = [*late.process.arguments[:-1], str(port)]
        async with late:
            await up(listener)


async def test_a_hotkey_that_is_refused_hears_nothing_and_is_told_why(tmp_path: Path) -> None:
    async with (
        MarketProcess(tmp_path, GPUPOOL_MARKET_MINERS=OTHER.address) as closed,
        Listener(closed.url).listening() as stranger,
        Listener(closed.url, OTHER).listening() as member,
    ):
        await up(member)
        await eventually(lambda: "takes no part" in (stranger.link.trouble or ""), what="a refusal")
        await closed.publish()
        await eventually(lambda: Reason.CHUTE_CREATED in member.reasons, what="the news")
        assert (stranger.news, stranger.gaps) == ([], 0)


async def test_a_storm_of_news_ends_in_a_comparison(market: MarketProcess) -> None:
    """Handed over faster than anybody can take them: none in between matters, as long as the end is right."""
    listener = Listener(market.url)
    for number in range(10_000):
        listener.link._take({"reason": "bounty_change", "data": {"chute_id": "c", "bounty": number}})
    async with listener.listening():
        await up(listener, gaps=2)
        await eventually(lambda: bool(listener.news), what="news")
        assert len(listener.news) <= linking.MOST_WAITING
        assert listener.news[-1].content.bounty == 9_999


async def test_news_that_cannot_be_taken_do_not_stop_the_next_ones(market: MarketProcess) -> None:
    async with Listener(market.url).listening() as listener:
        await up(listener)
        listener.refusing = True
        await market.publish("one")
        await asyncio.wait_for(_handed_over(listener), 30)
        listener.refusing = False
        await market.publish("two")
        await eventually(lambda: Reason.CHUTE_CREATED in listener.reasons, what="the next news")


async def _handed_over(listener: Listener) -> None:
    await eventually(lambda: not listener.link._waiting and listener.gaps, what="everything handed over")
