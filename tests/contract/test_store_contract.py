"""What every store keeps, returns and refuses. One suite for all of them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fleet_samples import (
    NOON,
    a_device,
    a_full_spec,
    a_job,
    a_join_token,
    a_node,
    a_placement,
    a_spec,
    a_workload,
    an_event,
    exclusive,
    later,
    put_ground,
    shared,
)
from gpupool.core.errors import ConflictError, ImpossibleMoveError, InvalidInputError, NotFoundError
from gpupool.fleet.claims import ClaimRefusedError
from gpupool.fleet.devices import DeviceKind, ProofState
from gpupool.fleet.jobs import JobState
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.ports.store import QueuedCommand, Store
from store_factories import FACTORIES


@pytest_asyncio.fixture(params=FACTORIES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened = await FACTORIES[request.param](tmp_path).open()
    yield opened
    await opened.close()


async def test_an_empty_store_holds_nothing(store: Store) -> None:
    async with store.read() as view:
        assert await view.node("node-x") is None
        assert await view.node_by_key("key") is None
        assert await view.workload("wl-x") is None
        assert await view.workload_by_name("x") is None
        assert await view.placement("pl-x") is None
        assert await view.job("job-x") is None
        assert await view.nodes() == []
        assert await view.devices() == []
        assert await view.workloads(deleted=True) == []
        assert await view.placements() == []
        assert await view.claims() == []
        assert await view.jobs() == []
        assert await view.events() == []
        assert await view.commands("node-x") == []
        assert await view.last_event_seq() == 0


async def test_a_node_is_kept_whole_and_replaced(store: Store) -> None:
    node = a_node(
        locked=True,
        draining=True,
        hourly_usd=0.35,
        runtimes=("process", "container"),
        session="s",
        boot_id="b",
        region="de-fra",
        short_ref="a100",
        pinned=frozenset({"name", "hourly_usd"}),
    )
    async with store.write() as writer:
        await writer.put_node(node)
        assert await writer.node(node.id) == node
    async with store.read() as view:
        assert await view.node(node.id) == node
        assert await view.node_by_key(node.public_key) == node
    changed = replace(node.moved(NodeState.VERIFYING), locked=False, session=None, seen_at=later(9))
    async with store.write() as writer:
        await writer.put_node(changed)
    async with store.read() as view:
        assert list(await view.nodes()) == [changed]


async def test_nodes_come_oldest_first(store: Store) -> None:
    young, old, middle = (a_node(joined_at=later(age)) for age in (30, 10, 20))
    async with store.write() as writer:
        for node in (young, old, middle):
            await writer.put_node(node)
        assert list(await writer.nodes()) == [old, middle, young]


@pytest.mark.parametrize("field", ["name", "public_key"])
async def test_two_nodes_never_share_a_name_or_a_key(store: Store, field: str) -> None:
    first = a_node()
    second = replace(a_node(), **{field: getattr(first, field)})
    async with store.write() as writer:
        await writer.put_node(first)
    with pytest.raises(ConflictError) as caught:
        async with store.write() as writer:
            await writer.put_node(second)
    assert second.name in caught.value.message
    async with store.read() as view:
        assert list(await view.nodes()) == [first]


async def test_name_and_key_are_free_again_once_their_node_is_removed(store: Store) -> None:
    first = a_node()
    gone = replace(first, state=NodeState.REMOVED, removed_at=later(5))
    second = replace(first, id=a_node().id, joined_at=later(9))
    async with store.write() as writer:
        await writer.put_node(first)
        await writer.put_node(gone)
        assert await writer.node_by_key(first.public_key) == gone
        await writer.put_node(second)
    async with store.read() as view:
        assert await view.node_by_key(first.public_key) == second
        assert list(await view.nodes()) == [second]
        assert list(await view.nodes(removed=True)) == [gone, second]
    with pytest.raises(ImpossibleMoveError, match="removed"):
        async with store.write() as writer:
            await writer.put_node(replace(first, state=NodeState.READY))


async def test_join_tokens_are_found_by_digest_spent_and_forgotten(store: Store) -> None:
    young = a_join_token("two", created_at=later(9), expires_at=later(90), uses=3, revoked=True)
    old = a_join_token("one", node_name="gpu-1", hourly_usd=1.5, region="us", short_ref="l4", created_by="me")
    async with store.write() as writer:
        assert await writer.join_tokens() == []
        for token in (young, old):
            await writer.put_join_token(token)
        assert list(await writer.join_tokens()) == [old, young]
        await writer.put_join_token(old.spent())
    async with store.read() as view:
        assert await view.join_token(old.digest) == old.spent()
        assert await view.join_token("another") is None
    with pytest.raises(ConflictError):
        async with store.write() as writer:
            await writer.put_join_token(replace(old, id=young.id + "x"))
    async with store.write() as writer:
        await writer.forget_join_tokens(later(60))
        assert list(await writer.join_tokens()) == [young]


async def test_devices_come_by_node_and_index(store: Store) -> None:
    one, two = sorted((a_node(), a_node()), key=lambda node: node.id)
    cpu = a_device(two.id, index=0, kind=DeviceKind.CPU, memory_mib=64_000, stand_in=True)
    second = a_device(
        one.id,
        index=1,
        short_ref="l4",
        failed_rules=("23 SMs, 58 expected",),
        hourly_usd=0.3,
        proof=ProofState.REFUTED,
        present=False,
    )
    first = a_device(one.id, index=0)
    async with store.write() as writer:
        for node in (one, two):
            await writer.put_node(node)
        for device in (cpu, second, first):
            await writer.put_device(device)
    async with store.read() as view:
        assert list(await view.devices()) == [first, second, cpu]
        assert list(await view.devices(one.id)) == [first, second]
    moved = replace(first, node_id=two.id, proof=ProofState.PROVEN)
    async with store.write() as writer:
        await writer.put_device(moved)
        assert moved in await writer.devices(two.id)
        assert list(await writer.devices(one.id)) == [second]


async def test_a_device_needs_a_known_node(store: Store) -> None:
    with pytest.raises(ConflictError, match="not known"):
        async with store.write() as writer:
            await writer.put_device(a_device("node-unknown"))


async def test_a_workload_is_kept_whole_and_replaced(store: Store) -> None:
    workload = a_workload(
        spec=a_full_spec(), wanted=3, failures=2, not_before=later(60), why="no device with 8192 MiB"
    )
    async with store.write() as writer:
        await writer.put_workload(workload)
    async with store.read() as view:
        assert await view.workload(workload.id) == workload
        assert await view.workload_by_name("everything") == workload
    changed = replace(workload, version=2, spec=a_spec(name="everything"), not_before=None, why=None)
    async with store.write() as writer:
        await writer.put_workload(changed)
    async with store.read() as view:
        assert list(await view.workloads()) == [changed]


async def test_a_name_is_free_again_once_its_workload_is_deleted(store: Store) -> None:
    spec = a_spec(name="chat")
    first, second = a_workload(spec=spec), a_workload(spec=spec, created_at=later(1))
    async with store.write() as writer:
        await writer.put_workload(first)
    with pytest.raises(ConflictError, match="chat"):
        async with store.write() as writer:
            await writer.put_workload(second)
    gone = replace(first, deleted=True)
    async with store.write() as writer:
        await writer.put_workload(gone)
        assert await writer.workload_by_name("chat") is None
        await writer.put_workload(second)
    async with store.read() as view:
        assert await view.workload_by_name("chat") == second
        assert await view.workload(first.id) == gone
        assert list(await view.workloads()) == [second]
        assert list(await view.workloads(deleted=True)) == [gone, second]


async def test_a_stale_writer_neither_revives_a_workload_nor_takes_it_back(store: Store) -> None:
    workload = a_workload()
    async with store.write() as writer:
        await writer.put_workload(replace(workload, version=2))
    with pytest.raises(ConflictError, match="version 2"):
        async with store.write() as writer:
            await writer.put_workload(workload)
    async with store.write() as writer:
        await writer.put_workload(replace(workload, version=2, deleted=True))
    with pytest.raises(ImpossibleMoveError, match="deleted"):
        async with store.write() as writer:
            await writer.put_workload(replace(workload, version=3))


async def test_placements_are_found_by_node_workload_and_life(store: Store) -> None:
    async with store.write() as writer:
        node, _, workload = await put_ground(writer)
        other_node, _, other_workload = await put_ground(writer)
        planned = a_placement(workload.id, node.id, created_at=later(1), port=30100, rate=1.5, restarts=2)
        failed = a_placement(
            workload.id, other_node.id, created_at=later(3), state=PlacementState.FAILED, reason="exit 1"
        )
        active = a_placement(other_workload.id, node.id, created_at=later(2), state=PlacementState.ACTIVE)
        for placement in (planned, failed, active):
            await writer.put_placement(placement)
    async with store.read() as view:
        assert await view.placement(failed.id) == failed
        assert list(await view.placements()) == [failed, active, planned]
        assert list(await view.placements(limit=2)) == [failed, active]
        assert list(await view.placements(live=True)) == [active, planned]
        assert list(await view.placements(live=False)) == [failed]
        assert list(await view.placements(node_id=node.id)) == [active, planned]
        assert list(await view.placements(workload_id=workload.id)) == [failed, planned]
        assert list(await view.placements(workload_id=workload.id, live=True)) == [planned]
        assert list(await view.placements(node_id=node.id, live=False)) == []
        found = await view.placements(node_id=node.id, workload_id=other_workload.id, live=True)
        assert list(found) == [active]


async def test_a_placement_needs_a_known_node_and_workload(store: Store) -> None:
    async with store.write() as writer:
        node, _, workload = await put_ground(writer)
    for placement in (a_placement("wl-x", node.id), a_placement(workload.id, "node-x")):
        with pytest.raises(ConflictError, match="not known"):
            async with store.write() as writer:
                await writer.put_placement(placement)


async def test_moves_are_checked_against_the_stored_row(store: Store) -> None:
    async with store.write() as writer:
        node, _, workload = await put_ground(writer)
        placement = a_placement(workload.id, node.id)
        job = a_job(workload.id)
        await writer.put_placement(placement)
        await writer.put_job(job)
        await writer.put_placement(placement.moved(PlacementState.FAILED, later(1), "lost"))
        await writer.put_job(job.moved(JobState.CANCELLED, later(1)))
        await writer.put_node(node.moved(NodeState.VERIFYING).moved(NodeState.UNREACHABLE))
        await writer.put_node(replace(node, state=NodeState.READY))
    with pytest.raises(ImpossibleMoveError, match="failed and cannot become starting"):
        async with store.write() as writer:
            await writer.put_placement(placement.moved(PlacementState.STARTING, later(2)))
    with pytest.raises(ImpossibleMoveError, match="cancelled and cannot become running"):
        async with store.write() as writer:
            await writer.put_job(job.moved(JobState.RUNNING, later(2)))
    with pytest.raises(ImpossibleMoveError, match="ready and cannot become joining"):
        async with store.write() as writer:
            await writer.put_node(node)
    async with store.read() as view:
        stored = await view.placement(placement.id)
        assert stored is not None
        assert (stored.state, stored.reason) == (PlacementState.FAILED, "lost")


async def test_jobs_come_newest_first(store: Store) -> None:
    async with store.write() as writer:
        node, _, workload = await put_ground(writer)
        _, _, other = await put_ground(writer)
        placement = a_placement(workload.id, node.id)
        await writer.put_placement(placement)
        first = a_job(workload.id, placement_id=placement.id, state=JobState.RUNNING, created_at=later(1))
        second = a_job(other.id, created_at=later(2), reason="waits")
        for job in (first, second):
            await writer.put_job(job)
    async with store.read() as view:
        assert list(await view.jobs()) == [second, first]
        assert list(await view.jobs(workload_id=workload.id)) == [first]
        assert await view.job(second.id) == second
    with pytest.raises(ConflictError, match="not known"):
        async with store.write() as writer:
            await writer.put_job(a_job("wl-x"))


async def test_claims_are_kept_found_and_given_back_with_the_placement(store: Store) -> None:
    async with store.write() as writer:
        node, device, workload = await put_ground(writer)
        one, two = (a_placement(workload.id, node.id) for _ in range(2))
        for placement in (one, two):
            await writer.put_placement(placement)
        claims = [shared(one, device, 1000, priority=5), shared(two, device, 2000)]
        for claim in claims:
            await writer.claim(claim)
    async with store.read() as view:
        assert sorted(await view.claims(), key=lambda claim: claim.mib) == claims
        assert sorted(await view.claims(device_id=device.id), key=lambda claim: claim.mib) == claims
        assert list(await view.claims(placement_id=two.id)) == [claims[1]]
        assert list(await view.claims(device_id="dev-x")) == []
        assert list(await view.claims(device_id=device.id, placement_id=one.id)) == [claims[0]]
    draining = one.moved(PlacementState.DRAINING, later(1))
    async with store.write() as writer:
        await writer.put_placement(draining)
        assert len(await writer.claims(placement_id=one.id)) == 1
        await writer.put_placement(draining.moved(PlacementState.ENDED, later(2)))
        assert list(await writer.claims()) == [claims[1]]


async def test_a_refused_claim_says_why_and_leaves_the_transaction_usable(store: Store) -> None:
    async with store.write() as writer:
        node, device, workload = await put_ground(writer)
        cpu = a_device(node.id, kind=DeviceKind.CPU, index=1, memory_mib=1000)
        await writer.put_device(cpu)
        one, two = (a_placement(workload.id, node.id) for _ in range(2))
        for placement in (one, two):
            await writer.put_placement(placement)
        await writer.claim(exclusive(one, device))
        refusals = [
            (exclusive(two, device), f"held by {one.id}"),
            (shared(two, device, 1), f"held exclusively by {one.id}"),
            (exclusive(two, cpu), "shared claims only"),
            (shared(two, cpu, 1001), "1000 MiB free, 1001 MiB asked"),
        ]
        for claim, reason in refusals:
            with pytest.raises(ClaimRefusedError, match=reason):
                await writer.claim(claim)
        await writer.claim(shared(two, cpu, 1000))
        with pytest.raises(ClaimRefusedError, match="already"):
            await writer.claim(shared(two, cpu, 0))
    async with store.read() as view:
        assert len(await view.claims()) == 2


async def test_claims_that_make_no_sense_are_refused(store: Store) -> None:
    async with store.write() as writer:
        node, device, workload = await put_ground(writer)
        _, stranger, _ = await put_ground(writer)
        placement = a_placement(workload.id, node.id)
        over = a_placement(workload.id, node.id, state=PlacementState.ENDED)
        for known in (placement, over):
            await writer.put_placement(known)
        with pytest.raises(NotFoundError, match="no device"):
            await writer.claim(shared(placement, a_device(node.id), 1))
        with pytest.raises(NotFoundError, match="no placement"):
            await writer.claim(shared(a_placement(workload.id, node.id), device, 1))
        with pytest.raises(ConflictError, match="ended"):
            await writer.claim(shared(over, device, 1))
        with pytest.raises(ConflictError, match="not of the placement's node"):
            await writer.claim(shared(placement, stranger, 1))
        with pytest.raises(InvalidInputError, match="-1 MiB"):
            await writer.claim(shared(placement, device, -1))
        assert list(await writer.claims()) == []


async def test_events_are_numbered_in_order_and_read_on_from_any_place(store: Store) -> None:
    async with store.write() as writer:
        numbers = [
            await writer.emit(an_event(subject=f"node-{number % 2}", count=number)) for number in range(6)
        ]
    assert numbers == sorted(set(numbers))
    async with store.read() as view:
        events = await view.events()
        assert [event.seq for event in events] == numbers
        assert [event.data["count"] for event in events] == list(range(6))
        assert events[0] == replace(an_event(subject="node-0", count=0), seq=numbers[0])
        assert [event.seq for event in await view.events(after=numbers[2])] == numbers[3:]
        assert [event.seq for event in await view.events(after=numbers[0], limit=2)] == numbers[1:3]
        assert [event.seq for event in await view.events(subject="node-1")] == numbers[1::2]
        assert await view.events(after=numbers[-1]) == []
        assert await view.last_event_seq() == numbers[-1]


async def test_event_data_keeps_its_types(store: Store) -> None:
    data: dict[str, Any] = {"text": "größer 值", "whole": 2**53, "part": 0.1, "yes": True, "none": None}
    async with store.write() as writer:
        await writer.emit(an_event(**data))
        assert (await writer.events())[0].data == data
        assert (await writer.events())[0].at == NOON


async def test_commands_are_numbered_without_gaps_for_each_node(store: Store) -> None:
    async with store.write() as writer:
        one, two = a_node(), a_node()
        for node in (one, two):
            await writer.put_node(node)
        numbers = [await writer.add_command(one.id, "launch", {"n": number}) for number in range(3)]
        assert numbers == [1, 2, 3]
        assert await writer.add_command(two.id, "stop", {}) == 1
    async with store.read() as view:
        assert list(await view.commands(one.id, after=1)) == [
            QueuedCommand(node_id=one.id, seq=2, kind="launch", payload={"n": 1}),
            QueuedCommand(node_id=one.id, seq=3, kind="launch", payload={"n": 2}),
        ]
        assert [command.seq for command in await view.commands(one.id, limit=2)] == [1, 2]


async def test_command_numbers_outlive_acknowledgement_and_node_changes(store: Store) -> None:
    async with store.write() as writer:
        node = a_node()
        await writer.put_node(node)
        for _ in range(3):
            await writer.add_command(node.id, "launch", {})
        await writer.acknowledge(node.id, 2)
        assert [command.seq for command in await writer.commands(node.id)] == [3]
        await writer.acknowledge(node.id, 3)
        await writer.acknowledge(node.id, 3)
        await writer.put_node(replace(node, seen_at=later(5)))
    async with store.write() as writer:
        assert await writer.commands(node.id) == []
        assert await writer.add_command(node.id, "launch", {}) == 4
        with pytest.raises(NotFoundError, match="no node"):
            await writer.add_command("node-unknown", "launch", {})


async def test_a_key_is_new_once_in_its_scope(store: Store) -> None:
    async with store.write() as writer:
        assert await writer.first_time("node-1", "rep-1")
        assert not await writer.first_time("node-1", "rep-1")
        assert await writer.first_time("node-2", "rep-1")
    async with store.write() as writer:
        assert not await writer.first_time("node-1", "rep-1")
        assert await writer.first_time("node-1", "rep-2")


@pytest.mark.parametrize("limit", [499, 500, 501, 1000, 1700])
async def test_a_long_list_comes_whole(store: Store, limit: int) -> None:
    async with store.write() as writer:
        for number in range(1600):
            await writer.emit(an_event(count=number))
        events = await writer.events(limit=limit)
    assert [event.data["count"] for event in events] == list(range(min(limit, 1600)))
