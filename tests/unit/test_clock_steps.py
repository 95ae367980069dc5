"""The wall clock is set forward or back, by a person or NTP: nothing is blamed, locked out or put off for it.

With a clock that the test turns, over the real control. Agents on the same machine see the same step; those on
another one are off by it until their clock follows.
"""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from control_stage import ScriptedAgent, stage
from fleet_samples import NOON
from gpupool.contracts.problems import Problem
from gpupool.control.http.signatures import ReplayGuard
from gpupool.control.links import Links
from gpupool.core.clock import FakeClock
from gpupool.core.errors import UnauthorizedError
from gpupool.core.keys import MAX_SKEW_SECONDS
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.workloads import Protocol, Workload, WorkloadKind, WorkloadSpec

REPORT = b'{"report_id":"rep-%d","sent_at":"2026-01-01T00:00:00Z","session":"s-1"}'
HOUR = 3600


async def answers(agent: ScriptedAgent, number: int, skew: int = 0) -> int:
    """Return the status of a heartbeat whose sender's clock is off by ``skew`` seconds."""
    reply = await agent.send("POST", "/v1/agent/reports", REPORT % number, skew=skew)
    if reply.status_code == 401:
        refused = Problem.model_validate_json(reply.content)
        assert "Clock skew" in refused.detail
        assert "NTP" in refused.remedy
    return reply.status_code


@pytest.mark.parametrize("step", [-HOUR, HOUR])
async def test_an_agent_elsewhere_is_told_about_the_skew_and_taken_again_once_it_is_gone(
    tmp_path: Path, step: int
) -> None:
    clock = FakeClock(datetime.now(UTC))
    async with stage(tmp_path, clock) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        clock.step_wall(step)
        assert await answers(agent, 1) == 401
        clock.step_wall(-step)
        assert await answers(agent, 2) == 200


@pytest.mark.parametrize("step", [-HOUR, HOUR, -400 * 24 * HOUR])
async def test_an_agent_on_the_same_machine_is_never_locked_out(tmp_path: Path, step: int) -> None:
    clock = FakeClock(datetime.now(UTC))
    async with stage(tmp_path, clock) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        # Old requests are forgotten before the step, which is what once made every earlier time suspect.
        clock.advance(2 * MAX_SKEW_SECONDS)
        assert await answers(agent, 1, skew=2 * MAX_SKEW_SECONDS) == 200
        clock.step_wall(step)
        for number in range(2, 5):
            assert await answers(agent, number, skew=2 * MAX_SKEW_SECONDS + step) == 200


def test_a_full_memory_does_not_lock_out_after_the_clock_was_set_back() -> None:
    guard, late = ReplayGuard(capacity=2), int(time.time())
    for number in range(5):
        guard.admit(late + number, f"late-{number}", late)
    guard.admit(late - HOUR, "early", late - HOUR)
    with pytest.raises(UnauthorizedError):
        guard.admit(late - HOUR, "early", late - HOUR)


async def test_a_back_off_is_not_stretched_by_a_clock_that_is_set_back(tmp_path: Path) -> None:
    clock = FakeClock(datetime.now(UTC))
    async with stage(tmp_path, clock) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        await on.deploy()
        shown = await on.until("/v1/workloads/demo", lambda found: found["live"])
        await agent.say(shown["placements"][0]["id"], PlacementState.FAILED, reason="exit: code 1")
        shown = await on.until("/v1/workloads/demo", lambda found: found["not_before"])
        assert shown["live"] == 0
        clock.step_wall(-24 * HOUR)
        on.pool.changes.announce()
        await on.until("/v1/workloads/demo", lambda found: found["live"])


def test_a_node_that_can_only_join_is_not_heard() -> None:
    """Its clock is off, so that all it signs is refused; the join token alone must not keep its endpoints in the feed."""
    clock = FakeClock()
    links = Links(clock)
    links.expect("new")
    links.heard("old")
    clock.advance(15)
    links.expect("old")
    assert links.gone_silent(10) == ["new", "old"]


def test_a_pause_holds_as_long_as_it_can_be_one() -> None:
    spec = WorkloadSpec(name="demo", kind=WorkloadKind.CHUTE, protocol=Protocol.HTTP)
    for ahead, expected in ((-1, False), (0, False), (1, True), (60, True), (61, False), (HOUR, False)):
        paused = Workload(
            id="wl-1", version=1, spec=spec, created_at=NOON, not_before=NOON + timedelta(seconds=ahead)
        )
        assert paused.backs_off(NOON) is expected, ahead
