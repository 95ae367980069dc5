"""A worker that hangs is told from one that works, waits or was frozen; one that dies rests ever longer."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpupool.recompute.server.restarts import Rest, RestartPolicy, Restarts
from gpupool.recompute.server.watchdog import LOOKS, Watchdog


def test_work_that_stays_at_one_place_is_counted_and_other_work_is_not() -> None:
    watchdog, progress = Watchdog(), {1: 5, 2: 0}
    seen = []
    for _ in range(LOOKS + 1):
        seen.append(watchdog.look(progress))
        progress[2] += 1
    assert [times[1] for times in seen] == list(range(LOOKS + 1))
    assert {times[2] for times in seen} == {0}


def test_one_step_is_enough_to_count_as_alive() -> None:
    watchdog, progress = Watchdog(), {1: 5}
    for _ in range(5):
        assert max(watchdog.look(progress)[1] for _ in range(LOOKS)) < LOOKS
        progress[1] += 1


def test_new_work_is_not_taken_for_the_old_one() -> None:
    watchdog = Watchdog()
    for number in range(100):
        assert watchdog.look({number: 0}) == {number: 0}


def test_the_first_restart_is_at_once_and_the_next_ones_wait_longer_until_quarantine() -> None:
    restarts = Restarts()
    rests = [restarts.died(now, 0.0) for now in range(6)]
    assert [rest.seconds for rest in rests] == [0, 1, 2, 4, 8, 600]
    assert [rest.quarantined for rest in rests] == [False] * 5 + [True]


def test_who_comes_back_from_quarantine_is_on_trial_until_it_has_lived_long() -> None:
    restarts = Restarts(RestartPolicy(quarantine_after=2))
    assert [restarts.died(now, 0.0).quarantined for now in (0, 1)] == [False, True]
    assert restarts.died(700.0, 99.0) == Rest(600.0, quarantined=True)
    assert restarts.died(5000.0, 3000.0) == Rest(0.0)
    assert restarts.deaths == 4


def test_deaths_far_apart_do_not_add_up() -> None:
    restarts = Restarts()
    assert {
        restarts.died(moment, 700.0).seconds for moment in itertools.islice(itertools.count(0, 700), 50)
    } == {0}


@given(st.lists(st.floats(0, 2000), max_size=60))
def test_a_crash_loop_never_starts_more_often_than_the_policy_allows(gaps: list[float]) -> None:
    """Whatever the gaps between deaths: in any window there are at most ``quarantine_after`` starts."""
    policy, now, starts = RestartPolicy(), 0.0, []
    restarts = Restarts(policy)
    for gap in gaps:
        now += gap
        now += restarts.died(now, gap).seconds
        starts.append(now)
    for first in starts:
        assert sum(first <= start < first + policy.window for start in starts) <= policy.quarantine_after


def test_one_that_answered_wrong_is_quarantined_at_once_and_on_trial_afterwards() -> None:
    policy = RestartPolicy()
    restarts = Restarts(policy)
    assert restarts.died(0.0, 1e6, useless=True) == Rest(policy.quarantine, quarantined=True)
    assert restarts.died(700.0, 5.0) == Rest(policy.quarantine, quarantined=True)
