"""A fleet that comes back after a restart of control: taken together, with the same outcome as one by one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from control_stage import cpu_of, gpu_of
from fleet_samples import NOON, new_database
from gpupool.contracts.agent_link import PlacementReport
from gpupool.control import returning
from gpupool.control.joining import forget_sessions
from gpupool.control.pool import Pool
from gpupool.core.clock import FakeClock
from gpupool.core.errors import BusyError, StorageError
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.ports.store import Store, Writer
from gpupool.store.open import open_store
from pool_world import World

NODES = 40


class CountingStore:
    """A store that counts its transactions, and fails in them where it is told to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.writes = 0
        self.fails = False

    def read(self) -> Any:
        """Open a consistent view."""
        return self._store.read()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Writer]:
        """Open a transaction."""
        self.writes += 1
        async with self._store.write() as writer:
            yield writer
            if self.fails:
                raise StorageError("The disk is full.")

    async def close(self) -> None:
        """Give back every connection."""
        await self._store.close()


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[CountingStore]:
    opened = CountingStore(await open_store(new_database(tmp_path)))
    yield opened
    await opened.close()


async def restarted(store: CountingStore) -> tuple[World, list[str]]:
    """Return a control that has just restarted, and the nodes of the one before."""
    before = World(Pool(store, FakeClock(NOON)), FakeClock(NOON))
    nodes = [await before.join(f"node-{number}") for number in range(NODES)]
    pool = Pool(store, FakeClock(NOON))
    await forget_sessions(pool)
    store.writes = 0
    return World(pool, FakeClock(NOON)), nodes


async def come_back(world: World, nodes: list[str]) -> list[bool]:
    reports = [
        world.report(node, "s-2", complete=True, devices=[cpu_of(f"node-{number}")], acknowledged=0)
        for number, node in enumerate(nodes)
    ]
    return await asyncio.gather(*reports)


async def test_those_with_nothing_new_share_a_transaction(store: CountingStore) -> None:
    world, nodes = await restarted(store)
    assert all(await come_back(world, nodes))
    assert store.writes <= 3
    snapshot = await world.pool.snapshot()
    assert {node.state for node in snapshot.nodes.values()} == {NodeState.READY}
    assert {node.session for node in snapshot.nodes.values()} == {"s-2"}
    async with store.read() as view:
        events = await view.events(after=0, limit=10_000, subject=nodes[3])
        assert await view.node(nodes[3]) == snapshot.nodes[nodes[3]]
    assert [event.kind for event in events[-4:]] == [
        "node.unreachable",
        "node.connected",
        "node.verifying",
        "node.ready",
    ]
    assert all(world.pool.links.is_idle(node) for node in nodes)
    # A heartbeat of the session is nobody's transaction.
    writes = store.writes
    assert await world.report(nodes[0], "s-2")
    assert store.writes == writes


async def test_news_among_them_takes_the_other_way(store: CountingStore) -> None:
    world, nodes = await restarted(store)
    async with world.pool.change() as change:
        await change.command(nodes[1], "stop", {"placement_id": "pl-x"})
    reports = [
        world.report(nodes[0], "s-2", complete=True, devices=[cpu_of("node-0"), gpu_of("new")]),
        world.report(nodes[1], "s-2", complete=True, devices=[cpu_of("node-1")]),
        world.report(nodes[2], "s-2", complete=True, devices=[]),
        world.report(nodes[3], "s-2", complete=True, devices=[cpu_of("node-3")]),
        world.report("node-unknown", "s-2", complete=True, devices=[]),
    ]
    assert await asyncio.gather(*reports) == [True, True, True, True, False]
    snapshot = await world.pool.snapshot()
    assert {device.id for device in snapshot.devices[nodes[0]]} == {"cpu-node-0", "GPU-new-0"}
    assert not snapshot.devices[nodes[2]][0].present
    assert all(snapshot.nodes[node].state is NodeState.READY for node in nodes[:4])
    assert not world.pool.links.is_idle(nodes[1])


async def test_a_report_that_comes_twice_counts_once(store: CountingStore) -> None:
    world, nodes = await restarted(store)
    twice = [
        world.report(nodes[0], "s-2", report_id="rep-1", complete=True, devices=[cpu_of("node-0")])
        for _ in range(2)
    ]
    assert await asyncio.gather(*twice) == [True, True]
    async with store.read() as view:
        events = await view.events(limit=10_000, subject=nodes[0])
    assert [event.kind for event in events].count("node.ready") == 2, "once before the restart"


async def test_what_fails_fails_for_all_who_shared_it_and_can_be_said_again(store: CountingStore) -> None:
    world, nodes = await restarted(store)
    store.fails = True
    outcomes = await asyncio.gather(
        *(
            world.report(node, "s-2", complete=True, devices=[cpu_of(f"node-{number}")])
            for number, node in enumerate(nodes)
        ),
        return_exceptions=True,
    )
    assert all(isinstance(outcome, StorageError) for outcome in outcomes)
    store.fails = False
    assert all(await come_back(world, nodes))


async def test_too_many_are_turned_away_before_they_wait(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, nodes = await restarted(store)
    monkeypatch.setattr(returning, "MOST_WAITING", 3)
    outcomes = await asyncio.gather(
        *(world.report(node, "s-2", complete=True, devices=[]) for node in nodes), return_exceptions=True
    )
    assert sum(isinstance(outcome, BusyError) for outcome in outcomes) == NODES - 3
    monkeypatch.undo()
    assert all(await come_back(world, nodes))


async def test_figures_near_those_recorded_are_no_transaction(store: CountingStore) -> None:
    world = World(Pool(store, FakeClock(NOON)), FakeClock(NOON))
    node = await world.join("node-a", cpu_of("a"))
    await world.want(memory_mb=100)
    [placement] = await world.live()
    await world.say(placement, PlacementState.ACTIVE)

    async def measured(rate: float, **facts: Any) -> int:
        writes = store.writes
        seen = {"placement_id": placement.id, "state": "active", "port": 30001, "rate": rate, **facts}
        assert await world.report(node, placements=[PlacementReport.model_validate(seen)])
        return store.writes - writes

    assert await measured(100.0) == 1
    assert await measured(104.0, memory_mib=77) == 0
    assert await measured(106.0) == 1
    assert await measured(106.0, restarts=1) == 1
    assert [placement.rate for placement in await world.live()] == [106.0]
