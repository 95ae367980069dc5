"""Reports: what counts as news, and how long the agent waits before it tries again."""

import random

import pytest

from gpupool.agent.backoff import FIRST_SECONDS, MOST_SECONDS, MOST_SPREAD_SECONDS, Backoff
from gpupool.agent.viewing import is_news, report_of
from gpupool.contracts.agent_link import PlacementReport
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.ports.runtime import Instance, InstanceState


def told(**changes: object) -> PlacementReport:
    values = {"placement_id": "pl-a", "state": PlacementState.ACTIVE, "memory_mib": 100, **changes}
    return PlacementReport.model_validate(values)


def test_what_was_never_told_is_news() -> None:
    assert is_news(told(), None)


@pytest.mark.parametrize(
    "change", [{"state": "verifying"}, {"reason": "x"}, {"restarts": 1}, {"port": 5}, {"memory_mib": 200}]
)
def test_every_change_is_news(change: dict[str, object]) -> None:
    assert is_news(told(**change), told())


def test_a_little_memory_is_no_news() -> None:
    assert not is_news(told(memory_mib=101), told())
    assert not is_news(told(), told())


def test_a_very_long_reason_is_cut_to_what_the_wire_takes() -> None:
    seen = Instance(placement_id="pl-a", state=InstanceState.EXITED, reason="x" * 5000)
    assert len(report_of(seen, stopping=False).reason or "") == 2000


def test_delays_double_to_a_limit_and_start_over() -> None:
    backoff = Backoff(random.Random(1))
    delays = [backoff.next() for _ in range(20)]
    for number, delay in enumerate(delays):
        whole = min(FIRST_SECONDS * 2**number, MOST_SECONDS)
        assert whole / 2 <= delay <= whole
    backoff.reset()
    assert backoff.next() <= FIRST_SECONDS


def test_two_agents_do_not_wait_alike() -> None:
    one, two = Backoff(random.Random(1)), Backoff(random.Random(2))
    assert [one.next() for _ in range(5)] != [two.next() for _ in range(5)]


def test_a_fleet_that_loses_control_spreads_its_return_over_what_control_said() -> None:
    firsts = [Backoff(random.Random(number)).next(10.0) for number in range(1000)]
    assert max(firsts) <= 10.0
    seconds = [sum(second <= delay < second + 1 for delay in firsts) for second in range(10)]
    assert all(60 <= number <= 140 for number in seconds), seconds
    assert max(Backoff(random.Random(number)).next(1e9) for number in range(99)) <= MOST_SPREAD_SECONDS
    backoff = Backoff(random.Random(1))
    backoff.next(10.0)
    assert backoff.next(10.0) <= 2 * FIRST_SECONDS
    assert Backoff(random.Random(1)).next(0.1) >= FIRST_SECONDS / 2
