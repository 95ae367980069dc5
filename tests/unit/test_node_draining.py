"""Draining: a replacement is active before the old one stops; what cannot move stays, and is named with the reason."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_stage import cpu_of
from fleet_samples import NOON, new_database
from gpupool.contracts.nodes import DrainView
from gpupool.control import tending, wanting
from gpupool.control.draining import drain_view
from gpupool.control.pool import Pool
from gpupool.core.clock import FakeClock
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.store.open import open_store
from pool_world import World

P = PlacementState
MEMORY_DISK = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where there is one, syncing every transaction costs nothing there."""


class Drained(World):
    """A world whose nodes are drained, and whose agents obey when told to."""

    async def drain(self, name: str, *, draining: bool = True) -> None:
        """Drain a node, or take that back, and settle."""
        async with self.pool.change("me") as change:
            await tending.set_drain(change, await tending.find_member(change, name), draining=draining)
        await self.reconciler.settle()

    async def left(self, name: str) -> DrainView:
        """Return what is left on a node."""
        snapshot = await self.pool.snapshot()
        node = snapshot.find_node(name)
        assert node is not None
        return drain_view(snapshot, node, self.pool.strategy)

    async def on(self, name: str) -> list[Placement]:
        """Return what lives on a node."""
        snapshot = await self.pool.snapshot()
        node = snapshot.find_node(name)
        assert node is not None
        return snapshot.live_on(node.id)

    async def say_all(self, name: str, state: PlacementState, reason: str | None = None) -> None:
        """Report one state of everything on a node, and settle."""
        for placement in await self.on(name):
            await self.say(placement, state, reason)
        await self.reconciler.settle()

    async def obey(self) -> None:
        """Let every agent do what it was told: what is planned becomes active, what drains ends."""
        for placement in await self.live():
            await self.say(placement, P.ENDED if placement.state is P.DRAINING else P.ACTIVE)
        await self.reconciler.settle()


async def new_world(folder: Path) -> Drained:
    store = await open_store(new_database(folder))
    clock = FakeClock(NOON)
    return Drained(Pool(store, clock), clock)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Drained]:
    made = await new_world(tmp_path)
    yield made
    await made.pool.store.close()


async def states(world: Drained, *names: str) -> list[list[str]]:
    return [[placement.state.value for placement in await world.on(name)] for name in names]


async def active_on_a(world: Drained) -> str:
    """Let node-a run the workload and return its id."""
    await world.join("node-a")
    demo = await world.want()
    await world.say_all("node-a", P.ACTIVE)
    return demo


async def test_the_old_one_stops_once_its_replacement_is_active(world: Drained) -> None:
    await active_on_a(world)
    await world.join("node-b")
    await world.drain("node-a")
    assert await states(world, "node-a", "node-b") == [["active"], ["planned"]]
    assert [(item.movable, item.detail) for item in (await world.left("node-a")).left] == [
        (True, "waits for its replacement on node-b, which is planned")
    ]
    await world.say_all("node-b", P.VERIFYING)
    assert await states(world, "node-a", "node-b") == [["active"], ["verifying"]]
    await world.say_all("node-b", P.ACTIVE)
    assert await states(world, "node-a", "node-b") == [["draining"], ["active"]]
    assert (await world.left("node-a")).left[0].detail == "is ending"
    assert "node.drained" not in await world.kinds()
    await world.say_all("node-a", P.ENDED)
    assert await states(world, "node-a", "node-b") == [[], ["active"]]
    assert (await world.kinds()).count("node.drained") == 1


async def test_what_no_other_node_takes_stays_until_one_does(world: Drained) -> None:
    demo = await active_on_a(world)
    await world.drain("node-a")
    assert await states(world, "node-a") == [["active"]]
    (item,) = (await world.left("node-a")).left
    assert (item.movable, item.workload) == (False, "demo")
    assert item.detail.startswith("cannot move: no node takes it")
    assert (await world.workload(demo)).why == (
        "cannot leave node-a, which drains: no node takes it: node-a is draining"
    )
    await world.join("node-b")
    await world.reconciler.settle()
    await world.obey()
    await world.obey()
    assert await states(world, "node-a", "node-b") == [[], ["active"]]
    assert (await world.workload(demo)).why is None


async def test_a_replacement_that_fails_costs_nothing(world: Drained) -> None:
    await active_on_a(world)
    await world.join("node-b")
    await world.drain("node-a")
    await world.say_all("node-b", P.FAILED, "exit 1")
    assert await states(world, "node-a", "node-b") == [["active"], []]
    (item,) = (await world.left("node-a")).left
    assert item.detail == "waits for another try elsewhere: failed 1 time in a row, last: exit 1"
    world.clock.advance(2)
    await world.reconciler.settle()
    assert await states(world, "node-a", "node-b") == [["active"], ["planned"]]


async def test_a_drain_taken_back_keeps_what_serves(world: Drained) -> None:
    await active_on_a(world)
    await world.join("node-b")
    await world.drain("node-a")
    await world.drain("node-a", draining=False)
    assert await states(world, "node-a", "node-b") == [["active"], ["draining"]]


async def test_two_drained_nodes_do_not_end_the_one_that_serves(world: Drained) -> None:
    await active_on_a(world)
    await world.join("node-b")
    await world.drain("node-a")
    await world.drain("node-b")
    assert await states(world, "node-a", "node-b") == [["active"], ["draining"]]


async def test_what_is_wanted_no_more_or_in_another_version_leaves_as_ever(world: Drained) -> None:
    await active_on_a(world)
    await world.join("node-b")
    await world.drain("node-a")
    await world.obey()
    await world.want(replicas=2)
    await world.want(env={"LEVEL": "2"})
    await world.obey()
    await world.obey()
    live = await world.live()
    assert {(p.workload_version, p.state, p.node_id) for p in live} == {
        (2, P.ACTIVE, (await world.on("node-b"))[0].node_id)
    }
    async with world.pool.change() as change:
        workload = await change.writer.workload_by_name("demo")
        assert workload is not None
        await wanting.delete(change, workload)
    await world.reconciler.settle()
    assert {p.state for p in await world.live()} == {P.DRAINING}


async def test_an_empty_node_is_drained_at_once_and_a_second_drain_says_nothing(world: Drained) -> None:
    await world.join("node-a")
    await world.drain("node-a")
    await world.drain("node-a")
    kinds = await world.kinds()
    assert (kinds.count("node.draining"), kinds.count("node.drained")) == (1, 1)
    async with world.pool.store.read() as reader:
        told = [event for event in await reader.events(limit=1000) if event.kind.startswith("node.drain")]
    assert {event.data["by"] for event in told} == {"me"}


NODES = ("node-a", "node-b", "node-c")
moves = st.one_of(
    st.tuples(st.just("drain"), st.sampled_from(NODES)),
    st.tuples(st.just("undrain"), st.sampled_from(NODES)),
    st.tuples(st.just("obey"), st.just("")),
    st.tuples(st.just("come up"), st.sampled_from(NODES)),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(moves, max_size=12), st.integers(1, 3))
def test_however_nodes_are_drained_no_workload_serves_less(
    steps: list[tuple[str, str]], replicas: int
) -> None:
    asyncio.run(_walk(steps, replicas))


async def _walk(steps: list[tuple[str, str]], replicas: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as folder:
        world = await new_world(Path(folder))
        for name in NODES:
            await world.join(name, cpu_of(name, memory_mib=3 * 1024))
        await world.want(replicas=replicas)
        await world.obey()
        for kind, name in steps:
            if kind in {"drain", "undrain"}:
                await world.drain(name, draining=kind == "drain")
            elif kind == "obey":
                await world.obey()
            else:
                for placement in await world.on(name):
                    if placement.state is not P.DRAINING:
                        await world.say(placement, P.ACTIVE)
                await world.reconciler.settle()
            serving = sum(placement.state is P.ACTIVE for placement in await world.live())
            assert serving >= replicas
        for name in NODES[1:]:
            await world.drain(name)
        await world.drain(NODES[0], draining=False)
        for _ in range(4):
            await world.obey()
        assert await states(world, *NODES) == [["active"] * replicas, [], []]
        await world.pool.store.close()
