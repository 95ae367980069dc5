"""The state machines allow exactly the moves of the design, and what is final stays."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_samples import a_job, a_node, a_placement, later
from gpupool.core.errors import ImpossibleMoveError
from gpupool.fleet.jobs import JOB_MACHINE, JobState
from gpupool.fleet.machines import StateMachine
from gpupool.fleet.nodes import NODE_MACHINE, NodeState
from gpupool.fleet.placements import LIVE_STATES, PLACEMENT_MACHINE, PlacementState, path_to

NODE_MOVES = """
joining>verifying joining>unreachable verifying>ready verifying>unreachable ready>unreachable ready>verifying
unreachable>verifying unreachable>ready unreachable>joining
joining>removed verifying>removed ready>removed unreachable>removed
"""
PLACEMENT_MOVES = """
planned>starting planned>draining planned>failed starting>verifying starting>draining starting>failed
verifying>active verifying>draining verifying>failed active>verifying active>draining active>failed
draining>ended draining>failed
"""
JOB_MOVES = """
queued>running queued>cancelled queued>failed running>succeeded running>failed running>cancelled running>queued
"""
MACHINES: list[tuple[StateMachine[Any], type[StrEnum], str]] = [
    (NODE_MACHINE, NodeState, NODE_MOVES),
    (PLACEMENT_MACHINE, PlacementState, PLACEMENT_MOVES),
    (JOB_MACHINE, JobState, JOB_MOVES),
]


@pytest.mark.parametrize(("machine", "states", "listed"), MACHINES, ids=["node", "placement", "job"])
def test_only_the_listed_moves_are_allowed(
    machine: StateMachine[Any], states: type[StrEnum], listed: str
) -> None:
    allowed = {f"{old}>{new}" for old in states for new in states if old != new and machine.allows(old, new)}
    assert allowed == set(listed.split())


def test_staying_is_no_move_and_always_allowed() -> None:
    assert all(machine.allows(state, state) for machine, states, _ in MACHINES for state in states)


def test_what_is_final_is_known() -> None:
    assert {state for state in NodeState if NODE_MACHINE.is_final(state)} == {NodeState.REMOVED}
    assert {state for state in JobState if JOB_MACHINE.is_final(state)} == {
        "succeeded",
        "failed",
        "cancelled",
    }
    assert set(PlacementState) - LIVE_STATES == {PlacementState.ENDED, PlacementState.FAILED}


def test_a_refusal_names_the_thing_its_state_and_the_ways_out() -> None:
    placement = a_placement("wl-1", "node-1", id="pl-1", state=PlacementState.DRAINING)
    with pytest.raises(ImpossibleMoveError) as caught:
        placement.moved(PlacementState.ACTIVE, later(1))
    assert caught.value.message == "The placement pl-1 is draining and cannot become active."
    assert caught.value.remedy == "From draining it can become: ended, failed."
    assert caught.value.status == 409
    ended = a_placement("wl-1", "node-1", state=PlacementState.ENDED)
    with pytest.raises(ImpossibleMoveError) as caught:
        ended.moved(PlacementState.ACTIVE, later(1))
    assert "nothing else" in caught.value.remedy


def _walk(thing: Any, move: Callable[[Any, Any], Any], wanted: list[Any], moves: str) -> None:
    """Try every wanted state in turn; each try makes a listed move or changes nothing."""
    for state in wanted:
        before = thing.state
        try:
            thing = move(thing, state)
        except ImpossibleMoveError:
            assert f"{before}>{state}" not in moves.split()
            assert thing.state is before
        else:
            assert thing.state is state
            assert before is state or f"{before}>{state}" in moves.split()


@given(st.lists(st.sampled_from(PlacementState), max_size=30))
def test_a_placement_only_ever_walks_the_listed_moves(wanted: list[PlacementState]) -> None:
    _walk(a_placement("wl-1", "node-1"), lambda thing, to: thing.moved(to, later(1)), wanted, PLACEMENT_MOVES)


@given(st.lists(st.sampled_from(JobState), max_size=30))
def test_a_job_only_ever_walks_the_listed_moves(wanted: list[JobState]) -> None:
    _walk(a_job("wl-1"), lambda thing, to: thing.moved(to, later(1)), wanted, JOB_MOVES)


@given(st.lists(st.sampled_from(NodeState), max_size=30))
def test_a_node_only_ever_walks_the_listed_moves(wanted: list[NodeState]) -> None:
    _walk(a_node(), lambda thing, to: thing.moved(to), wanted, NODE_MOVES)


def test_a_move_keeps_the_time_and_the_reason_and_no_move_changes_nothing() -> None:
    placement = a_placement("wl-1", "node-1")
    failed = placement.moved(PlacementState.FAILED, later(5), "exit 1")
    assert (failed.changed_at, failed.reason) == (later(5), "exit 1")
    assert failed.moved(PlacementState.FAILED, later(9), "lost") is failed
    job = a_job("wl-1").moved(JobState.RUNNING, later(1)).moved(JobState.FAILED, later(2), "exit 3")
    assert (job.changed_at, job.reason) == (later(2), "exit 3")


def test_a_placement_that_is_active_again_forgets_why_it_was_not() -> None:
    placement = a_placement("wl-1", "node-1").moved(PlacementState.STARTING, later(1))
    verifying = placement.moved(PlacementState.VERIFYING, later(2), "exit: code 1")
    assert verifying.reason == "exit: code 1"
    assert verifying.moved(PlacementState.ACTIVE, later(3)).reason is None
    assert verifying.moved(PlacementState.ACTIVE, later(3), "exit: code 1").reason is None


@given(st.sampled_from(PlacementState), st.sampled_from(PlacementState))
def test_a_path_is_made_of_listed_moves_and_ends_where_it_should(
    old: PlacementState, new: PlacementState
) -> None:
    here = old
    for step in path_to(old, new):
        assert f"{here}>{step}" in PLACEMENT_MOVES.split()
        here = step
    assert here in {old, new}


def test_paths_skip_forward_and_never_back() -> None:
    planned, active, ended = PlacementState.PLANNED, PlacementState.ACTIVE, PlacementState.ENDED
    assert path_to(planned, active) == (PlacementState.STARTING, PlacementState.VERIFYING, active)
    assert path_to(active, PlacementState.STARTING) == ()
    assert path_to(PlacementState.DRAINING, active) == ()
    assert path_to(active, active) == ()
    for state in LIVE_STATES - {PlacementState.DRAINING}:
        assert path_to(state, ended) == (PlacementState.DRAINING, ended)
    for final in set(PlacementState) - LIVE_STATES:
        assert all(path_to(final, state) == () for state in PlacementState)
