"""What a proxy remembers of clients and nodes: counts, rhythm and silence, and that memory stays bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.recompute.proxy.history import HOURS_KEPT, MINUTES_KEPT, History, Series, from_text, to_text
from gpupool.recompute.proxy.tallies import CLIENTS_KEPT, NODES_KEPT, Ended, Tallies, Tally

MINUTE = 60


class Farm:
    """Tallies with clocks of their own."""

    def __init__(self, silent_floor: float = 120.0) -> None:
        self.now = 1000.0
        self.wall = 1_800_000_000.0
        self.tallies = Tallies(silent_floor, lambda: self.wall)
        self.began = self.now

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def ask(
        self, client: str = "a", ms: float = 10.0, result: str = "ok", tries: int = 1, kind: str = "frames"
    ) -> None:
        self.tallies.ended(client, "n" if result == "ok" else "-", kind, ms, result, tries, self.now)

    def rhythm(self, client: str, pause: float, minutes: int) -> None:
        """Let a client ask every ``pause`` seconds for so many minutes."""
        for _ in range(minutes):
            for _ in range(max(1, int(MINUTE / pause))):
                self.ask(client)
                self.pass_time(min(pause, MINUTE))
            self.tallies.minute(self.wall)

    def silent(self) -> set[str]:
        return set(self.tallies.silent(self.now, self.began))


def test_a_request_counts_for_its_client_its_node_and_its_kind() -> None:
    farm = Farm()
    farm.ask(ms=10)
    farm.ask(ms=30, tries=3)
    farm.ask(result="deadline", ms=4500)
    farm.ask(result="left", ms=100)
    farm.tallies.refused("b", farm.now)
    client, node = farm.tallies.clients["a"], farm.tallies.nodes["n"]
    assert (client.requests, client.failed, client.left, client.total_ms) == (3, 1, 1, 40)
    assert (node.requests, node.failed, node.worst_ms) == (2, 0, 30)
    assert farm.tallies.kinds["frames"].buckets[3:6] == [1, 0, 1]
    assert farm.tallies.attempts == {"frames": 6}
    assert (farm.tallies.clients["b"].refused, farm.tallies.refused_count) == (1, 1)


def test_retries_are_what_is_neither_first_nor_hedge_and_never_shrink() -> None:
    farm = Farm()
    farm.ask(tries=3)
    assert farm.tallies.retries("frames", hedges=1) == 1
    assert farm.tallies.retries("frames", hedges=2) == 1
    farm.ask(tries=2, result="left")
    assert farm.tallies.retries("frames", hedges=1) == 2


def test_a_rate_follows_what_is_asked() -> None:
    farm = Farm()
    for _ in range(60):
        for _ in range(20):
            farm.ask()
        farm.tallies.second(2.0)
    assert farm.tallies.clients["a"].rate == pytest.approx(10, rel=0.01)
    for _ in range(60):
        farm.tallies.second(2.0)
    assert farm.tallies.clients["a"].rate == pytest.approx(0, abs=0.01)


def test_only_a_client_that_asked_regularly_can_fall_silent() -> None:
    farm = Farm()
    farm.rhythm("steady", 10, minutes=6)
    farm.ask("once")
    assert farm.silent() == set()
    farm.pass_time(109)
    assert farm.silent() == set()
    farm.pass_time(2)
    assert farm.silent() == {"steady"}
    farm.ask("steady")
    assert farm.silent() == set()


def test_a_slow_rhythm_is_waited_for_longer_than_the_floor() -> None:
    farm = Farm()
    farm.rhythm("hourly", 3600, minutes=8)
    for _ in range(8):
        farm.ask("hourly")
        farm.pass_time(3600)
    assert farm.silent() == set()
    farm.pass_time(9 * 3600)
    assert farm.silent() == {"hourly"}


def test_bursts_do_not_hide_the_rhythm() -> None:
    farm = Farm()
    for _ in range(10):
        for _ in range(50):
            farm.ask("bursts")
            farm.pass_time(0.01)
        farm.pass_time(MINUTE)
        farm.tallies.minute(farm.wall)
    assert farm.tallies.clients["bursts"].silent_after(120) == pytest.approx(600, rel=0.05)


def test_one_long_absence_does_not_make_it_deaf_to_the_next() -> None:
    farm = Farm()
    farm.rhythm("a", 10, minutes=6)
    farm.pass_time(7 * 86400)
    farm.rhythm("a", 10, minutes=6)
    assert farm.tallies.clients["a"].silent_after(120) < 300


def test_nobody_is_silent_for_a_time_in_which_there_was_no_proxy() -> None:
    farm = Farm()
    farm.rhythm("a", 10, minutes=6)
    farm.pass_time(86400)
    farm.began = farm.now
    assert farm.silent() == set()
    farm.pass_time(121)
    assert farm.silent() == {"a"}


def test_strangers_do_not_push_harvesters_out() -> None:
    farm = Farm()
    farm.rhythm("harvester", 10, minutes=6)
    for number in range(3 * CLIENTS_KEPT):
        farm.pass_time(0.1)
        farm.ask(f"stranger-{number}")
    assert len(farm.tallies.clients) <= CLIENTS_KEPT
    assert "harvester" in farm.tallies.clients
    assert f"stranger-{3 * CLIENTS_KEPT - 1}" in farm.tallies.clients
    assert farm.tallies.forgotten + len(farm.tallies.clients) == 3 * CLIENTS_KEPT + 1


def test_nodes_that_come_and_go_do_not_pile_up() -> None:
    farm = Farm()
    for number in range(2 * NODES_KEPT):
        farm.tallies.ended("a", f"n{number}", "http", 1.0, "ok", 1, farm.now + number)
    assert len(farm.tallies.nodes) == NODES_KEPT
    assert f"n{2 * NODES_KEPT - 1}" in farm.tallies.nodes


def test_a_minute_goes_into_both_histories_once() -> None:
    farm = Farm()
    start = int(farm.wall) // MINUTE * MINUTE
    for _ in range(3):
        farm.ask(ms=20)
    farm.ask(result="deadline")
    farm.tallies.failed_attempts("n", 2)
    farm.tallies.minute(start)
    farm.tallies.minute(start + MINUTE)
    farm.ask(ms=5)
    farm.tallies.minute(start + 2 * MINUTE)
    client = farm.tallies.clients["a"].history
    assert [
        (p.start - start, p.requests, p.failed, p.mean_ms, p.worst_ms) for p in client.minutes.points()
    ] == [
        (0, 4, 1, 20, 20),
        (2 * MINUTE, 1, 0, 5, 5),
    ]
    assert sum(point.requests for point in client.hours.points()) == 5
    (first, _) = farm.tallies.nodes["n"].history.minutes.points()
    assert (first.requests, first.failed) == (5, 2)


def test_both_series_are_bounded_and_keep_the_newest() -> None:
    history = History()
    for number in range(20_000):
        history.add(number * MINUTE, 1, 0, 1.0, 1.0)
    minutes, hours = history.minutes.points(), history.hours.points()
    assert (len(minutes), len(hours)) == (MINUTES_KEPT, HOURS_KEPT)
    assert minutes[-1].start == 19_999 * MINUTE
    assert hours[-2].requests == 60


def test_a_clock_set_back_adds_to_the_newest_point() -> None:
    series = Series(60, 10)
    series.add(600, 1, 0, 1, 1)
    series.add(60, 2, 1, 1, 1)
    assert [(point.start, point.requests, point.failed) for point in series.points()] == [(600, 3, 1)]


@given(
    st.lists(
        st.tuples(st.integers(0, 2**37), st.integers(0, 2**40), st.integers(0, 2**40), st.floats(0, 2**50)),
        max_size=40,
    )
)
def test_a_series_survives_packing_whatever_it_holds(adds: list[tuple[int, int, int, float]]) -> None:
    series, copy = Series(60, 12), Series(60, 12)
    for wall, requests, failed, ms in adds:
        series.add(wall, requests, failed, ms, ms)
    copy.unpack(from_text(to_text(series.packed())))
    assert copy.points() == series.points()
    assert len(copy.points()) <= 12


@given(st.binary(max_size=300))
def test_any_bytes_are_a_history_in_order_or_refused(data: bytes) -> None:
    series = Series(60, 12)
    try:
        series.unpack(data)
    except ValueError:
        assert series.points() == []
        return
    starts = [point.start for point in series.points()]
    assert starts == sorted(set(starts))


ENDS = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from("nm"),
    st.just("req-1"),
    st.sampled_from(["frames", "http"]),
    st.sampled_from([0.5, 10.0, 40.0, 4000.0]),
    st.sampled_from(["ok", "ok", "ok", "deadline", "left"]),
    st.sampled_from([1, 1, 3]),
    st.just(1000.0),
)


@given(st.lists(ENDS, max_size=30))
def test_ends_counted_together_count_as_one_by_one(ends: list[Ended]) -> None:
    together, single = Tallies(120.0), Tallies(120.0)
    together.take(ends)
    for client, node, _, kind, milliseconds, result, tries, now in ends:
        single.ended(client, node, kind, milliseconds, result, tries, now)
    for one, other in ((together, single), (single, together)):
        assert one.attempts == other.attempts
        for group in ("clients", "nodes", "kinds"):
            mine, theirs = getattr(one, group), getattr(other, group)
            assert mine.keys() == theirs.keys()
            for name, tally in mine.items():
                assert numbers(tally) == numbers(theirs[name])


def numbers(tally: Tally) -> dict[str, object]:
    names = ("requests", "failed", "total_ms", "worst_ms", "last", "buckets", "frames", "http", "left")
    return {name: getattr(tally, name, None) for name in names}
