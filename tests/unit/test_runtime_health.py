"""When a workload counts as healthy, and when patience with it ends."""

from hypothesis import given
from hypothesis import strategies as st

from gpupool.runtimes.process.health import HealthJudge, HealthTimings

TIMINGS = HealthTimings()


def test_one_good_answer_makes_it_healthy() -> None:
    judge = HealthJudge(TIMINGS, launched=100.0, start_timeout=10.0)
    assert judge.note("refused", 100.1) is None
    assert not judge.healthy
    assert judge.note(None, 100.5) is None
    assert judge.healthy


def test_three_failures_in_a_row_take_health_away_and_fewer_do_not() -> None:
    judge = HealthJudge(TIMINGS, 0.0, 10.0)
    judge.note(None, 1.0)
    judge.note("slow", 3.0)
    judge.note("slow", 5.0)
    assert judge.healthy
    judge.note(None, 7.0)
    judge.note("slow", 9.0)
    judge.note("slow", 11.0)
    assert judge.healthy
    assert judge.note("slow", 13.0) is None
    assert not judge.healthy


def test_patience_ends_30_seconds_after_health_was_lost() -> None:
    judge = HealthJudge(TIMINGS, 0.0, 10.0)
    judge.note(None, 1.0)
    for moment in (3.0, 5.0, 7.0):
        assert judge.note("slow", moment) is None
    assert judge.note("slow", 36.9) is None
    assert judge.note("slow", 37.0) == "unhealthy: no good answer for 30 s (slow)"


def test_one_that_recovers_in_time_gets_new_patience() -> None:
    judge = HealthJudge(TIMINGS, 0.0, 10.0)
    judge.note(None, 1.0)
    for moment in (3.0, 5.0, 7.0):
        judge.note("slow", moment)
    judge.note(None, 30.0)
    assert judge.healthy
    for moment in (40.0, 42.0, 44.0):
        judge.note("slow", moment)
    assert judge.note("slow", 73.0) is None


def test_the_start_time_out_counts_from_the_launch() -> None:
    judge = HealthJudge(TIMINGS, 50.0, 10.0)
    assert judge.note("refused", 59.9) is None
    assert judge.note("refused", 60.0) == "unhealthy: not healthy within 10 s of its launch (refused)"


def test_probes_grow_apart_until_healthy_and_are_then_steady() -> None:
    judge = HealthJudge(TIMINGS, 0.0, 10.0)
    pauses = [judge.next_pause() for _ in range(12)]
    assert pauses[0] == 0.1
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1.0
    judge.note(None, 5.0)
    assert judge.next_pause() == 2.0


def test_ten_healthy_minutes_settle_it() -> None:
    judge = HealthJudge(TIMINGS, 0.0, 10.0)
    judge.note(None, 1.0)
    assert not judge.settled(600.9)
    assert judge.settled(601.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 20)), max_size=60))
def test_it_is_never_given_up_while_healthy_and_always_after_lasting_failure(
    probes: list[tuple[bool, float]],
) -> None:
    judge, now, last_good = HealthJudge(TIMINGS, 0.0, 10.0), 0.0, None
    for well, pause in probes:
        now += pause
        verdict = judge.note(None if well else "fault", now)
        if well:
            last_good = now
            assert judge.healthy
        if verdict is not None:
            assert not judge.healthy
            assert now - (last_good or 0.0) >= (10.0 if last_good is None else 30.0)
            return
    for _ in range(4):
        now += 40.0
        if judge.note("fault", now) is not None:
            return
    raise AssertionError("lasting failure was borne for ever")
