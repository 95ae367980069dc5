"""How often one client may ask."""

import asyncio

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.proxy import asking_rate
from gpupool.recompute.proxy.asking_rate import AskingRate
from gpupool.recompute.proxy.settings import ProxySettings
from proxy_stage import FrameNode, HttpNode, nodes, proxy


@given(st.floats(0.1, 100), st.lists(st.floats(0, 3), max_size=200))
def test_over_time_nobody_gets_more_than_the_rate_and_its_burst(rate: float, pauses: list[float]) -> None:
    limit, now, admitted = AskingRate(rate), 0.0, 0
    for pause in pauses:
        now += pause
        admitted += limit.admits("a", now)
    assert admitted <= max(1.0, 2 * rate) + rate * now + 1e-6


def test_one_client_takes_nothing_from_another_and_is_told_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capture = structlog.testing.LogCapture()
    monkeypatch.setattr(asking_rate, "log", structlog.wrap_logger(None, processors=[capture]))
    limit = AskingRate(2.0)
    assert [limit.admits("a", 0.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert limit.admits("b", 0.0)
    assert [limit.admits("a", 0.5) for _ in range(2)] == [True, False]
    assert [line["client"] for line in capture.entries] == ["a"]
    for second in range(1, 70):
        limit.admits("a", float(second))
        for _ in range(9):
            limit.admits("a", float(second))
    assert len(capture.entries) == 2


def test_clients_without_number_take_no_memory_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_rate, "_MOST_CLIENTS", 3)
    limit = AskingRate(0.5)
    for number in range(50):
        limit.admits(f"c{number}", float(number))
        limit.admits(f"c{number}", float(number))
    assert len(limit._left) == 3
    assert len(limit._told) <= 3


def test_a_rate_is_above_nothing() -> None:
    with pytest.raises(InvalidInputError, match="rate of a client"):
        ProxySettings(nodes=("a",), client_rate=0.0)


async def test_who_asks_too_often_is_refused_in_both_protocols() -> None:
    ours, theirs = HttpNode(), FrameNode()
    async with nodes(ours, theirs), proxy(ours, theirs, client_rate=0.1) as stage:
        await stage.known(2)
        assert (await stage.http("POST", "/v1/proofs", b"{}"))[0] == 200
        status, headers, _ = await stage.http("POST", "/v1/proofs", b"{}")
        assert (status, headers["retry-after"]) == (429, "1")
        with pytest.raises(asyncio.IncompleteReadError):
            await stage.ask(b"one too many")
        assert theirs.seen == []
        assert (await stage.http("GET", "/readyz"))[0] == 200
