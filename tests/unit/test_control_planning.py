"""The next step for a workload, move by move."""

from dataclasses import replace
from datetime import timedelta

from fleet_samples import NOON, a_device, a_node, a_placement, a_spec, a_workload
from gpupool.control.planning import Drain, Explain, Place, Step, next_step
from gpupool.control.snapshot import Snapshot
from gpupool.fleet.claims import Claim, ClaimMode
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.fleet.workloads import Selector, Workload
from gpupool.scheduling.cheapest import CheapestFit

NODE = a_node(state=NodeState.READY)
GPUS = [a_device(NODE.id, id=f"GPU-{index}", index=index) for index in range(2)]
WORKLOAD = a_workload(spec=a_spec(selector=Selector(gpu_count=1)), version=2, wanted=1)


def placement(state: PlacementState, version: int = 2, born: float = 0) -> Placement:
    moment = NOON + timedelta(seconds=born)
    return a_placement(WORKLOAD.id, NODE.id, state=state, workload_version=version, created_at=moment)


def step(workload: Workload, *live: Placement, cards: int = 2) -> Step | None:
    """Return the next step where each live placement (newest first) holds a card of its own."""
    held = zip(live, GPUS, strict=False)
    claims = {
        one.id: [Claim(placement_id=one.id, device_id=card.id, mode=ClaimMode.EXCLUSIVE, mib=card.memory_mib)]
        for one, card in held
    }
    snapshot = Snapshot(
        seq=1,
        nodes={NODE.id: NODE},
        devices={NODE.id: GPUS[:cards]},
        workloads={workload.id: workload},
        live=live,
        placed={one.id: one for one in live},
        final=(),
        claims=claims,
    )
    return next_step(snapshot, workload, CheapestFit(frozenset()), NOON)


def test_a_missing_instance_is_placed() -> None:
    found = step(WORKLOAD)
    assert isinstance(found, Place)
    assert found.decision.device_ids == ("GPU-0",)


def test_what_is_as_wanted_is_left_alone() -> None:
    assert step(WORKLOAD, placement(PlacementState.STARTING)) is None
    assert step(replace(WORKLOAD, wanted=0)) is None


def test_a_reason_that_holds_no_longer_is_cleared() -> None:
    cured = replace(WORKLOAD, why="no node takes it")
    assert step(cured, placement(PlacementState.STARTING)) == Explain(None)


def test_what_does_not_fit_is_explained_once() -> None:
    two = replace(WORKLOAD, spec=a_spec(selector=Selector(gpu_count=2)))
    found = step(two, cards=1)
    assert isinstance(found, Explain)
    assert found.why is not None
    assert "1 fitting free GPUs, 2 are asked" in found.why
    assert step(replace(two, why=found.why), cards=1) is None


def test_a_pool_without_any_gpu_says_just_that() -> None:
    assert step(WORKLOAD, cards=0) == Explain("no node takes it: this pool has no GPU")


def test_a_workload_that_backs_off_waits() -> None:
    failed = replace(WORKLOAD, not_before=NOON + timedelta(seconds=1), why="failed 1 time in a row")
    assert step(failed) is None
    assert isinstance(step(replace(failed, not_before=NOON)), Place)
    assert step(failed, placement(PlacementState.STARTING)) is None


def test_too_many_are_drained_newest_first() -> None:
    newest, oldest = placement(PlacementState.ACTIVE, born=9), placement(PlacementState.ACTIVE)
    assert step(WORKLOAD, newest, oldest) == Drain(newest, "1 wanted")


def test_a_deleted_workload_drains_every_version() -> None:
    gone = replace(WORKLOAD, deleted=True)
    current, old = placement(PlacementState.STARTING), placement(PlacementState.ACTIVE, version=1)
    assert step(gone, current, old) == Drain(current, "deleted")
    assert step(gone, old) == Drain(old, "deleted")
    assert step(gone, placement(PlacementState.DRAINING)) is None


def test_a_new_version_starts_beside_the_old_one_and_then_takes_over() -> None:
    old = placement(PlacementState.ACTIVE, version=1)
    assert isinstance(step(WORKLOAD, old), Place)
    assert step(WORKLOAD, placement(PlacementState.VERIFYING), old) is None
    found = step(WORKLOAD, placement(PlacementState.ACTIVE), old)
    assert found == Drain(old, "replaced by version 2")


def test_where_only_one_fits_the_old_version_makes_room() -> None:
    old = placement(PlacementState.ACTIVE, version=1)
    assert step(WORKLOAD, old, cards=1) == Drain(old, "makes room for version 2")
    leaving = replace(old, state=PlacementState.DRAINING)
    assert isinstance(step(WORKLOAD, leaving, cards=1), Explain)


def test_an_old_version_is_not_given_up_for_one_that_fits_nowhere() -> None:
    greedy = replace(WORKLOAD, spec=replace(WORKLOAD.spec, selector=Selector(gpu_count=8)))
    assert isinstance(step(greedy, placement(PlacementState.ACTIVE, version=1)), Explain)
