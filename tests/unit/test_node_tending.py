"""What a person does with a node, and what its agent may say after that."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from control_stage import cpu_of, gpu_of
from fleet_samples import NOON, a_join_token, new_database
from gpupool.contracts.nodes import NodeSettings
from gpupool.control import tending
from gpupool.control.joining import join
from gpupool.control.pool import Pool
from gpupool.core.clock import FakeClock
from gpupool.core.errors import ConflictError, NodeInUseError, NodeRemovedError, NotFoundError
from gpupool.fleet.join_tokens import JoinToken
from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.placements import PlacementState
from gpupool.store.open import open_store
from pool_world import World, join_request


class Tended(World):
    """A world with a person in it."""

    async def remove(self, name: str = "node-a", *, force: bool = False) -> None:
        """Remove a node, as the route does."""
        async with self.pool.change("me") as change:
            node = await tending.find_member(change, name)
            await tending.remove(change, node, force=force)
        self.pool.forget_node(node.id)
        await self.reconciler.settle()

    async def join_with(self, token: JoinToken | None, name: str = "node-a", **fields: object) -> Node:
        """Join again or anew."""
        async with self.pool.change() as change:
            return await join(change, join_request(name, **fields), token)

    async def set(self, **fields: object) -> Node:
        """Set facts of node-a and return it."""
        async with self.pool.change("me") as change:
            node = await tending.find_member(change, "node-a")
            await tending.describe(change, node, NodeSettings.model_validate(fields))
            return await tending.find_member(change, "node-a")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Tended]:
    clock = FakeClock(NOON)
    store = await open_store(new_database(tmp_path))
    yield Tended(Pool(store, clock), clock)
    await store.close()


async def test_a_node_with_work_is_removed_only_by_force_and_its_work_goes_elsewhere(world: Tended) -> None:
    node_id = await world.join("node-a")
    await world.want()
    (placement,) = await world.live()
    await world.say(placement, PlacementState.ACTIVE)
    await world.join("node-b")
    with pytest.raises(NodeInUseError, match="node-a runs 1 deployment"):
        await world.remove()
    await world.remove(force=True)
    (moved,) = await world.live()
    snapshot = await world.pool.snapshot()
    assert snapshot.nodes[moved.node_id].name == "node-b"
    assert [node.name for node in snapshot.members()] == ["node-b"]
    assert snapshot.nodes[node_id].state is NodeState.REMOVED
    assert placement.id not in snapshot.claims
    (ended,) = snapshot.final
    assert (ended.id, ended.state, ended.reason) == (
        placement.id,
        PlacementState.ENDED,
        "its node was removed",
    )
    assert not any(device.present for device in snapshot.devices[node_id])
    async with world.pool.store.read() as reader:
        assert await reader.commands(node_id) == []
        (told,) = [e for e in await reader.events(limit=1000) if e.kind == "node.removed"]
    assert told.data == {"node": "node-a", "ended": 1, "by": "me"}


async def test_a_removed_node_is_told_so_whatever_it_says(world: Tended) -> None:
    node_id = await world.join()
    await world.remove()
    with pytest.raises(NodeRemovedError, match="node-a was removed from the pool at 2026-03-01 12:00 UTC"):
        await world.report(node_id)
    with pytest.raises(NodeRemovedError):
        await world.report(node_id, session="s-2", complete=True, devices=[cpu_of("node-a")])
    with pytest.raises(NodeRemovedError):
        await world.join_with(None)
    world.pool.links.heard(node_id)
    for _ in range(6):
        world.clock.advance(5)
        await world.reconciler.settle()
    assert (await world.node(node_id)).state is NodeState.REMOVED
    assert world.pool.links.get(node_id) is None


async def test_a_lost_node_is_removed_and_another_machine_takes_its_name(world: Tended) -> None:
    lost = await world.join("node-a")
    await world.want()
    for _ in range(5):
        world.clock.advance(5)
        await world.reconciler.settle()
    with pytest.raises(ConflictError, match="belongs to another node"):
        await world.join_with(None, public_key="B" * 43 + "=")
    await world.remove(force=True)
    fresh = await world.join_with(None, public_key="B" * 43 + "=")
    assert fresh.id != lost
    assert {node.id for node in (await world.pool.snapshot()).nodes.values()} == {lost, fresh.id}


async def test_an_old_key_comes_back_with_a_token_made_since_and_brings_its_card(world: Tended) -> None:
    old = await world.join()
    made_before = a_join_token("before", created_at=NOON - timedelta(seconds=1), node_name="node-a", uses=2)
    world.clock.advance(60)
    await world.remove()
    with pytest.raises(NodeRemovedError):
        await world.join_with(made_before)
    world.clock.advance(60)
    token = a_join_token("since", created_at=world.clock.now(), node_name="node-a")
    back = await world.join_with(token)
    assert back.id != old
    assert await world.report(back.id, complete=True, devices=[cpu_of("node-a")])
    snapshot = await world.pool.snapshot()
    assert [device.present for device in snapshot.devices[back.id]] == [True]
    assert old not in snapshot.devices


async def test_what_a_person_said_outlasts_what_the_agent_says(world: Tended) -> None:
    await world.join()
    assert (await world.join_with(None, hourly_usd=2.0)).hourly_usd == 2.0
    assert (await world.set(hourly_usd=0.5, region="de-fra")).region == "de-fra"
    again = await world.join_with(None, hourly_usd=3.0)
    assert (again.hourly_usd, again.region) == (0.5, "de-fra")
    taken_back = await world.set(hourly_usd=None)
    assert (taken_back.hourly_usd, taken_back.region, taken_back.pinned) == (None, "de-fra", frozenset())
    assert (await world.join_with(None, hourly_usd=3.0)).hourly_usd == 3.0
    async with world.pool.store.read() as reader:
        told = [
            e.data for e in await reader.events(limit=1000) if e.kind == "node.changed" and "by" in e.data
        ]
    assert told[0] == {"node": "node-a", "hourly_usd": 0.5, "region": "de-fra", "by": "me"}


async def test_a_token_names_its_node_for_good(world: Tended) -> None:
    token = a_join_token("one", node_name="gpu-1", hourly_usd=1.5, region="us", short_ref="l4")
    node = await world.join_with(token, "its-host-name", hourly_usd=9.0)
    assert (node.name, node.hourly_usd, node.region, node.short_ref) == ("gpu-1", 1.5, "us", "l4")
    again = await world.join_with(None, "its-host-name", hourly_usd=9.0)
    assert (again.id, again.name, again.hourly_usd) == (node.id, "gpu-1", 1.5)
    async with world.pool.store.read() as reader:
        assert await reader.join_token(token.digest) == token.spent()


async def test_a_lock_keeps_new_work_away_and_moves_nothing(world: Tended) -> None:
    await world.join()
    await world.want()
    for _ in range(2):
        async with world.pool.change("me") as change:
            await tending.set_lock(change, await tending.find_member(change, "node-a"), locked=True)
    other = await world.want("other")
    assert len(await world.live()) == 1
    assert "locked" in ((await world.workload(other)).why or "")
    assert (await world.kinds()).count("node.locked") == 1


async def test_a_node_that_flaps_keeps_its_cards_and_its_history(world: Tended) -> None:
    node_id = await world.join("node-a", cpu_of("node-a"), gpu_of("node-a"))
    await world.want(gpu_count=1)
    (placement,) = await world.live()
    await world.say(placement, PlacementState.ACTIVE)
    before = await world.pool.snapshot()
    for number in range(3):
        for _ in range(5):
            world.clock.advance(5)
            await world.reconciler.settle()
        assert (await world.node(node_id)).state is NodeState.UNREACHABLE
        seen = {"placement_id": placement.id, "state": PlacementState.ACTIVE}
        devices = [cpu_of("node-a"), gpu_of("node-a")]
        await world.report(
            node_id, session=f"s-{number + 2}", complete=True, devices=devices, placements=[seen]
        )
        await world.reconciler.settle()
    after = await world.pool.snapshot()
    assert after.devices == before.devices
    assert after.claims == before.claims
    assert [one.id for one in after.live] == [placement.id]
    assert after.nodes[node_id].joined_at == NOON
    assert (await world.kinds()).count("node.unreachable") == 3


async def test_a_name_that_no_node_has_is_told(world: Tended) -> None:
    await world.join()
    await world.remove()
    with pytest.raises(NotFoundError, match="There is no node 'node-a'"):
        await world.remove()
