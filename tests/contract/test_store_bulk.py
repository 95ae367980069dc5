"""Many rows at once are kept as one by one, and what a transaction has put is what is read after it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from fleet_samples import (
    NOON,
    a_device,
    a_node,
    a_placement,
    a_workload,
    an_event,
    exclusive,
    later,
    put_ground,
)
from gpupool.core.errors import ImpossibleMoveError
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.ports.store import Store
from gpupool.store.bulk import PART
from gpupool.store.sql_writer import KEPT_KEYS
from store_factories import FACTORIES


@pytest_asyncio.fixture(params=FACTORIES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened = await FACTORIES[request.param](tmp_path).open()
    yield opened
    await opened.close()


async def test_events_at_once_have_the_numbers_of_their_order(store: Store) -> None:
    events = [an_event(subject=f"node-{number}", count=number) for number in range(2 * PART + 7)]
    async with store.write() as writer:
        assert await writer.emit_all([]) == 0
        first = await writer.emit(an_event())
        assert await writer.emit_all(events) == first + len(events)
    async with store.read() as view:
        found = await view.events(after=first, limit=10_000)
    assert list(found) == [replace(event, seq=first + 1 + place) for place, event in enumerate(events)]


async def test_what_is_noted_of_nodes_changes_nothing_else_of_them(store: Store) -> None:
    nodes = [a_node(region=f"r-{number}") for number in range(PART + 3)]
    async with store.write() as writer:
        for node in nodes:
            await writer.put_node(node)
        assert await writer.add_command(nodes[0].id, "stop", {}) == 1
    wanted = [
        replace(node, state=NodeState.VERIFYING, session="s-2", boot_id="b", seen_at=later(5))
        for node in nodes
    ]
    async with store.write() as writer:
        await writer.note_nodes([*(replace(node, region="other") for node in wanted), a_node()])
        assert writer.written.nodes == {node.id: node for node in wanted}
    async with store.read() as view:
        assert {node.id: node for node in await view.nodes()} == {node.id: node for node in wanted}
        assert await view.some_nodes([wanted[1].id, "node-x"]) == {wanted[1].id: wanted[1]}
        assert await view.node_by_name(wanted[2].name) == wanted[2]
        assert await view.node_by_name("nobody") is None
        assert await view.node_count() == len(nodes)
        assert await view.with_commands([node.id for node in nodes[:9]]) == {nodes[0].id}
    async with store.write() as writer:
        await writer.put_node(replace(wanted[3], state=NodeState.REMOVED))
        assert await writer.node_by_name(wanted[3].name) is None
        assert await writer.node_count() == len(nodes) - 1
    with pytest.raises(ImpossibleMoveError):
        async with store.write() as writer:
            await writer.note_nodes([wanted[0], replace(wanted[1], state=NodeState.JOINING)])
    async with store.read() as view:
        assert await view.node(wanted[0].id) == wanted[0]


async def test_keys_at_once_are_remembered_as_one_by_one(store: Store) -> None:
    keys = {f"report:{number}": f"rep-{number}" for number in range(PART + 3)}
    async with store.write() as writer:
        assert await writer.first_time("report:1", "rep-1")
        assert await writer.first_times(keys) == keys.keys() - {"report:1"}
        assert await writer.first_times({}) == frozenset()
    async with store.write() as writer:
        assert await writer.first_times(keys) == frozenset()
        assert not await writer.first_time("report:2", "rep-2")
        assert await writer.first_times({"report:1": "rep-2", "report:2": "rep-1"}) == {
            "report:1",
            "report:2",
        }


@pytest.mark.slow
async def test_the_oldest_keys_are_forgotten_here_too(store: Store) -> None:
    async with store.write() as writer:
        for number in range(KEPT_KEYS):
            await writer.first_time("report:1", f"rep-{number}")
        assert await writer.first_times({"report:1": "rep-new"}) == {"report:1"}
        assert not await writer.first_time("report:1", "rep-1")
        assert await writer.first_times({"report:1": "rep-0"}) == {"report:1"}


async def test_a_transaction_tells_what_it_has_put(store: Store) -> None:
    async with store.write() as writer:
        node, device, workload = await put_ground(writer)
        placement = a_placement(workload.id, node.id)
        claim = exclusive(placement, device)
        await writer.put_placement(placement)
        await writer.claim(claim)
        written = writer.written
    async with store.read() as view:
        assert written.nodes == {one.id: one for one in await view.nodes()}
        assert written.devices == {one.id: one for one in await view.devices()}
        assert written.workloads == {one.id: one for one in await view.workloads()}
        assert written.placements == {one.id: one for one in await view.placements()}
        assert written.claims == await view.claims() == [claim]
        assert await view.device(device.id) == device
        assert await view.device("dev-x") is None
        assert await view.devices_on([node.id, "node-x"]) == [device]
        assert await view.live_on([node.id, "node-x"]) == [placement]
        assert await view.live_on(["node-x"]) == []
        assert await view.devices_on([]) == []
    async with store.write() as writer:
        ended = replace(placement, state=PlacementState.FAILED, changed_at=NOON)
        await writer.put_placement(ended)
        await writer.put_device(a_device(node.id, id=device.id, name="other"))
        await writer.put_workload(a_workload(id=workload.id, spec=workload.spec, deleted=True))
        assert await writer.live_on([node.id]) == []
        assert writer.written.placements == {ended.id: ended}
        assert writer.written.workloads[workload.id].deleted
