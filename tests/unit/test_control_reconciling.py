"""The reconciler over the real store with a clock that the test turns."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from control_stage import cpu_of
from fleet_samples import NOON, an_event, new_database
from gpupool.contracts.agent_link import PlacementReport
from gpupool.contracts.control import WorkloadView
from gpupool.control.joining import forget_sessions
from gpupool.control.pool import Pool
from gpupool.control.reconciling import Reconciler
from gpupool.control.recording import pause_after
from gpupool.control.views import workload_views
from gpupool.core.clock import FakeClock
from gpupool.core.errors import StorageError
from gpupool.fleet.claims import ClaimMode
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.workloads import WorkloadSpec
from gpupool.scheduling.port import Decision, FleetView
from gpupool.store.open import open_store
from pool_world import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = FakeClock(NOON)
    store = await open_store(new_database(tmp_path))
    yield World(Pool(store, clock), clock)
    await store.close()


async def test_failures_back_off_longer_each_time_until_one_is_active(world: World) -> None:
    await world.join()
    demo = await world.want()
    for failures in (1, 2, 3):
        await world.say((await world.live())[0], PlacementState.FAILED, "exit 1")
        await world.reconciler.settle()
        waiting = await world.workload(demo)
        assert (waiting.failures, await world.live()) == (failures, [])
        assert waiting.not_before is not None
        pause = (waiting.not_before - world.clock.now()).total_seconds()
        assert 0.5 * 2 ** (failures - 1) <= pause <= 2 ** (failures - 1)
        world.clock.advance(pause)
        await world.reconciler.settle()
    await world.say((await world.live())[0], PlacementState.ACTIVE)
    await world.reconciler.settle()
    cured = await world.workload(demo)
    assert (cured.failures, cured.not_before, cured.why) == (0, None, None)


def test_pauses_never_exceed_a_minute() -> None:
    pauses = [pause_after(failures, random.Random(7)) for failures in range(1, 2000)]
    assert max(pauses) <= 60
    assert min(pauses[10:]) >= 30


async def test_deploying_again_ends_the_back_off(world: World) -> None:
    await world.join()
    demo = await world.want()
    await world.say((await world.live())[0], PlacementState.FAILED, "exit 1")
    await world.want()
    assert len(await world.live()) == 1
    assert (await world.workload(demo)).version == 1


async def test_a_silent_node_is_unreachable_and_keeps_its_placements(world: World) -> None:
    node_id = await world.join()
    await world.want()
    await world.say((await world.live())[0], PlacementState.ACTIVE)
    for _ in range(5):
        world.clock.advance(5)
        await world.reconciler.settle()
    assert (await world.node(node_id)).state is NodeState.UNREACHABLE
    assert [placement.state for placement in await world.live()] == [PlacementState.ACTIVE]
    assert (await world.kinds()).count("node.unreachable") == 1
    assert await world.report(node_id)
    assert (await world.node(node_id)).state is NodeState.READY


async def test_a_control_that_was_asleep_does_not_blame_its_nodes(world: World) -> None:
    node_id = await world.join()
    world.clock.advance(3600)
    await world.reconciler.settle()
    assert (await world.node(node_id)).state is NodeState.READY
    for _ in range(3):
        world.clock.advance(5)
        await world.reconciler.settle()
    assert (await world.node(node_id)).state is NodeState.UNREACHABLE


async def test_a_heartbeat_of_a_known_session_writes_nothing(world: World) -> None:
    node_id = await world.join()
    before = await world.kinds()
    world.clock.advance(5)
    assert await world.report(node_id)
    assert await world.kinds() == before
    link = world.pool.links.get(node_id)
    assert link is not None
    assert link.heard_at == world.clock.now()


async def test_a_restart_forgets_sessions_and_waits_for_nodes_with_placements(world: World) -> None:
    node_id = await world.join()
    idle = await world.join("node-b")
    await world.want()
    held = (await world.live())[0].node_id
    again = Pool(world.pool.store, world.clock)
    await forget_sessions(again)
    assert again.awaited == {held}
    nodes = (await again.snapshot()).nodes
    assert {nodes[one].state for one in (node_id, idle)} == {NodeState.UNREACHABLE}
    assert {nodes[one].session for one in (node_id, idle)} == {None}
    world.clock.advance(21)
    await Reconciler(again).settle()
    assert again.awaited == set()
    assert (await world.kinds())[-1] == "pool.settled"


async def test_a_node_that_leaves_takes_its_untold_orders_with_it(world: World) -> None:
    node_id = await world.join()
    await world.want()
    async with world.pool.store.read() as reader:
        assert [command.kind for command in await reader.commands(node_id)] == ["start"]
    await world.report(node_id, leaving=True)
    async with world.pool.store.read() as reader:
        assert await reader.commands(node_id) == []
    assert await world.live() == []
    assert not await world.report(node_id)


async def test_nothing_new_goes_to_a_node_whose_agent_is_stopping(world: World) -> None:
    node_id = await world.join()
    demo = await world.want()
    placement = (await world.live())[0]
    await world.say(placement, PlacementState.ACTIVE)
    await world.say(placement, PlacementState.DRAINING)
    await world.reconciler.settle()
    assert [one.id for one in await world.live()] == [placement.id]
    assert "draining" in ((await world.workload(demo)).why or "")
    await world.say(placement, PlacementState.ENDED)
    await world.report(node_id, leaving=True)
    await world.reconciler.settle()
    assert await world.live() == []
    assert (await world.workload(demo)).failures == 0
    await world.report(node_id, session="s-2", complete=True, devices=[cpu_of("node-a")])
    await world.reconciler.settle()
    assert len(await world.live()) == 1


async def test_what_goes_on_although_it_drains_is_ordered_to_stop(world: World) -> None:
    node_id = await world.join()
    await world.want()
    placement = (await world.live())[0]
    await world.say(placement, PlacementState.DRAINING)
    await world.say(placement, PlacementState.DRAINING)
    async with world.pool.store.read() as reader:
        assert [command.kind for command in await reader.commands(node_id)] == ["start"]
    await world.say(placement, PlacementState.ACTIVE)
    assert (await world.live())[0].state is PlacementState.DRAINING
    async with world.pool.store.read() as reader:
        assert [command.kind for command in await reader.commands(node_id)] == ["start", "stop"]


async def test_a_fixed_port_is_taken_once_a_node(world: World) -> None:
    await world.join()
    await world.want(port=30100)
    second = await world.want("other", port=30100)
    assert len(await world.live()) == 1
    assert "port 30100" in ((await world.workload(second)).why or "")


async def test_many_instances_spread_until_the_memory_is_full(world: World) -> None:
    for name in ("node-a", "node-b"):
        await world.join(name, cpu_of(name, memory_mib=3000))
    demo = await world.want(replicas=5, memory_mb=1024)
    placed = await world.live()
    assert len(placed) == 4
    assert len({placement.node_id for placement in placed}) == 2
    assert "MiB" in ((await world.workload(demo)).why or "")
    async with world.pool.store.read() as reader:
        assert sum(claim.mib for claim in await reader.claims()) == 4 * 1024


class Stubborn:
    """A strategy that always names the same device."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id

    def place(self, spec: WorkloadSpec, fleet: FleetView) -> Decision:
        """Name the node's cpu device, however full it is."""
        mib = spec.memory_mib
        return Decision(node_id=self._node_id, device_ids=("cpu-node-a",), mode=ClaimMode.SHARED, mib=mib)


async def test_a_strategy_that_breaks_the_claims_rule_is_refused_and_holds_up_nobody(world: World) -> None:
    world.pool.strategy = Stubborn(await world.join())
    greedy = await world.want("greedy", memory_mb=1_000_000)
    modest = await world.want("modest")
    assert [placement.workload_id for placement in await world.live()] == [modest]
    async with world.pool.store.read() as reader:
        assert [claim.mib for claim in await reader.claims()] == [1024]
        assert len(await reader.commands((await world.live())[0].node_id)) == 1
    assert (await world.workload(greedy)).wanted == 1


async def test_a_restart_in_place_tells_its_reason_until_the_chute_is_active(world: World) -> None:
    await world.join()
    workload_id = await world.want()
    snapshot = await world.pool.snapshot()
    (placement,) = snapshot.live_of(workload_id)

    async def seen(state: PlacementState, restarts: int, reason: str | None) -> WorkloadView:
        told = PlacementReport(placement_id=placement.id, state=state, restarts=restarts, reason=reason)
        await world.report(placement.node_id, placements=[told])
        snapshot = await world.pool.snapshot()
        return workload_views(snapshot, [snapshot.workloads[workload_id]])[0]

    trying = await seen(PlacementState.VERIFYING, 1, "exit: code 1 after 0.1 s")
    assert trying.last_failure == "exit: code 1 after 0.1 s"
    assert trying.placements[0].restarts == 1
    active = await seen(PlacementState.ACTIVE, 1, None)
    assert active.last_failure is None
    assert active.placements[0].reason is None


async def test_a_commit_whose_answer_is_lost_is_seen_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.join()
    commit = AsyncConnection.commit

    async def lost(connection: AsyncConnection) -> None:
        await commit(connection)
        raise ConnectionResetError("the server went away")

    assert await world.live() == []
    with monkeypatch.context() as broken:
        broken.setattr(AsyncConnection, "commit", lost)
        with pytest.raises(StorageError, match="went away"):
            await world.want()
    # Whoever asks again finds it there already, which is no change; so nothing else would wake the reconciler.
    await world.reconciler.settle()
    [placement] = await world.live()
    assert placement.workload_id in (await world.pool.snapshot()).workloads
    assert world.pool.changes.seq == (await world.pool.snapshot()).seq


async def test_what_another_control_has_written_is_seen_once_a_change_fails(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await world.join()
    assert not (await world.node(node)).locked
    other = await open_store(tmp_path / "pool.db")
    async with other.write() as writer:
        for known in await writer.nodes():
            await writer.put_node(replace(known, locked=True))
        await writer.emit(an_event())
        seq = await writer.emit(an_event())
    await other.close()

    async def refused(connection: AsyncConnection) -> None:
        await connection.rollback()
        raise ConnectionResetError("another control works on it")

    with monkeypatch.context() as broken:
        broken.setattr(AsyncConnection, "commit", refused)
        with pytest.raises(StorageError):
            await world.report(node, complete=True, devices=[cpu_of("node-a")])
    assert (await world.node(node)).locked
    assert world.pool.changes.seq == seq
