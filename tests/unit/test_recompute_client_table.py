"""The client's view of its hosts, with the hands of the clock turned by the test."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.recompute.client.table import SILENCE_FLOOR_S, HostTable

KIND = "quality 18"
RETRY_S = 100.0


@pytest.fixture
def table() -> HostTable:
    return HostTable(["a", "b", "c"], RETRY_S)


def answer(table: HostTable, name: str, now: float, seconds: float) -> None:
    table.started(name)
    table.answered(name, now, KIND, seconds)
    table.ended(name)


def take(table: HostTable, now: float) -> str:
    name = table.pick(now, KIND)
    assert name is not None
    table.started(name)
    return name


def test_equal_hosts_take_turns(table: HostTable) -> None:
    assert sorted(take(table, 0.0) for _ in range(9)) == sorted("abc" * 3)


def test_hosts_that_are_about_equally_fast_take_turns_even_under_a_light_load(table: HostTable) -> None:
    for name, seconds in (("a", 0.100), ("b", 0.115), ("c", 0.500)):
        answer(table, name, 0.0, seconds)
    taken = []
    for _ in range(4):
        taken.append(take(table, 0.0))
        table.ended(taken[-1])
    assert taken == ["a", "b", "a", "b"]


def test_a_failed_host_is_tried_in_growing_pauses_by_all_look_ups_together() -> None:
    table, tries, now = HostTable(["a"], RETRY_S), [], 0.0
    table.failed("a", now, "refused")
    for _ in range(300):
        if table.pick_failed(now) == "a":
            tries.append(now)
            table.failed("a", now, "refused")
        now += 0.01
    pauses = [round(later - sooner, 2) for sooner, later in pairwise(tries)]
    assert pauses == sorted(pauses)
    assert max(pauses) == pytest.approx(0.5, abs=0.02)
    assert table.next_try() == pytest.approx(tries[-1] + 0.5)
    answer(table, "a", now, 0.1)
    assert table.pick_failed(now) == "a"


def test_a_fast_host_gets_more_of_a_burst(table: HostTable) -> None:
    for name, seconds in (("a", 0.1), ("b", 0.2), ("c", 0.2)):
        answer(table, name, 0.0, seconds)
    taken = [take(table, 0.0) for _ in range(12)]
    assert [taken.count(name) for name in "abc"] == [6, 3, 3]


def test_a_host_that_was_slow_once_is_tried_again_in_time() -> None:
    table = HostTable(["fast", "slow"], RETRY_S)
    answer(table, "fast", 0.0, 0.1)
    answer(table, "slow", 0.0, 0.5)
    assert table.pick(1.0, KIND) == "fast"
    table.started("fast")
    assert table.pick(1.0, KIND) == "fast"
    assert table.pick(300.0, KIND) == "slow"


def test_a_failed_host_is_left_alone_for_the_retry_interval(table: HostTable) -> None:
    table.failed("a", 10.0, "refused")
    for now in (10.0, 50.0, 109.9):
        assert {table.pick(now, KIND, {name}) for name in "bc"} == {"b", "c"}
    assert table.pick(110.0, KIND, {"b", "c"}) == "a"


def test_only_one_look_up_tries_a_host_that_comes_back(table: HostTable) -> None:
    table.failed("a", 0.0, "refused")
    table.started("a")
    assert table.pick(200.0, KIND, {"b", "c"}) is None
    table.answered("a", 200.0, KIND, 0.1)
    assert table.pick(200.0, KIND, {"b", "c"}) == "a"


def test_with_all_failed_the_least_recently_failed_is_asked_and_a_liar_last(table: HostTable) -> None:
    table.quarantine("a", 1.0, "lied")
    table.failed("b", 3.0, "refused")
    table.failed("c", 2.0, "refused")
    assert table.pick(4.0, KIND) is None
    assert table.pick_failed(4.0) == "c"
    assert table.pick_failed(4.0, {"c"}) == "b"
    assert table.pick_failed(4.0, {"b", "c"}) == "a"
    assert table.pick_failed(4.0, {"a", "b", "c"}) is None


def test_a_quarantined_host_stays_so_whatever_it_answers(table: HostTable) -> None:
    assert table.quarantine("a", 0.0, "lied")
    assert not table.quarantine("a", 1.0, "lied again")
    answer(table, "a", 2.0, 0.1)
    assert table.pick(10_000.0, KIND, {"b", "c"}) is None
    assert {view.name: view.state for view in table.view(10_000.0)} == {
        "a": "quarantined",
        "b": "good",
        "c": "good",
    }


def test_a_failure_is_news_once(table: HostTable) -> None:
    assert table.failed("a", 0.0, "refused")
    assert not table.failed("a", 1.0, "refused")
    answer(table, "a", 2.0, 0.1)
    assert table.failed("a", 3.0, "refused")


def test_a_slow_host_is_no_silent_one(table: HostTable) -> None:
    answer(table, "a", 5.0, 0.1)
    assert not table.silent("a", since=4.0, now=9.0, reason="silent")
    assert table.silent("a", since=6.0, now=9.0, reason="silent")


def test_an_unknown_host_may_be_silent_for_a_share_of_the_time(table: HostTable) -> None:
    assert table.silence_limit("a", KIND, 5.0) == pytest.approx(5.0 / 4)
    answer(table, "a", 0.0, 0.01)
    assert table.silence_limit("a", KIND, 5.0) == SILENCE_FLOOR_S


def test_a_queue_makes_silence_last_longer(table: HostTable) -> None:
    answer(table, "a", 0.0, 0.2)
    for _ in range(3):
        table.started("a")
    assert table.silence_limit("a", KIND, 10.0) == pytest.approx(4 * 0.2 * 3)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["ok", "fail", "lie"]), st.floats(0.001, 30)),
        max_size=60,
    ),
    timeout_s=st.floats(0.01, 100),
)
def test_whatever_happens_somebody_is_asked_and_silence_ends_before_the_deadline(
    steps: list[tuple[str, str, float]], timeout_s: float
) -> None:
    table, now = HostTable("abc", RETRY_S), 0.0
    for name, outcome, seconds in steps:
        now += seconds
        table.started(name)
        if outcome == "ok":
            table.answered(name, now, KIND, seconds)
        elif outcome == "fail":
            table.failed(name, now, "refused")
        else:
            table.quarantine(name, now, "lied")
        table.ended(name)
        assert (table.pick(now, KIND) or table.pick_failed(now + 1.0)) in table.names
        assert all(0 < table.silence_limit(name, KIND, timeout_s) <= timeout_s / 2 for name in "abc")
        assert all(view.outstanding == 0 for view in table.view(now))
