"""Transactions of every store: all or nothing, one after another, durable, and atomic claims under a race."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from fleet_samples import a_node, a_placement, an_event, exclusive, later, put_ground, shared
from gpupool.core.errors import ConflictError, StorageError
from gpupool.fleet.claims import Claim, ClaimMode, ClaimRefusedError
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.ports.store import Store
from store_factories import FACTORIES, StoreFactory, start_writer


@pytest.fixture(params=FACTORIES)
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    return FACTORIES[request.param](tmp_path)


@pytest_asyncio.fixture
async def store(factory: StoreFactory) -> AsyncIterator[Store]:
    opened = await factory.open()
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def stores(factory: StoreFactory) -> AsyncIterator[list[Store]]:
    """Two stores on the same database."""
    async with AsyncExitStack() as stack:
        opened = [await factory.open() for _ in range(2)]
        for store in opened:
            stack.push_async_callback(store.close)
        yield opened


class OwnError(Exception):
    """An error of the block, not of the store."""


async def test_an_error_leaves_nothing_behind_its_events_included(store: Store) -> None:
    async with store.write() as writer:
        node, device, workload = await put_ground(writer)
        placement = a_placement(workload.id, node.id)
        await writer.put_placement(placement)
        await writer.emit(an_event("placement.planned", placement.id))

    async def change_everything_and_fail() -> None:
        async with store.write() as writer:
            await writer.claim(exclusive(placement, device))
            await writer.put_placement(placement.moved(PlacementState.STARTING, later(1)))
            await writer.emit(an_event("placement.starting", placement.id))
            await writer.add_command(node.id, "launch", {})
            await writer.first_time(node.id, "rep-1")
            raise OwnError

    with pytest.raises(OwnError):
        await change_everything_and_fail()
    async with store.write() as writer:
        assert await writer.placement(placement.id) == placement
        assert list(await writer.claims()) == []
        assert [event.kind for event in await writer.events()] == ["placement.planned"]
        assert await writer.add_command(node.id, "launch", {}) == 1
        assert await writer.first_time(node.id, "rep-1")


async def test_a_refused_change_takes_the_whole_transaction_with_it(store: Store) -> None:
    node = a_node()

    async def put_two_of_one_name() -> None:
        async with store.write() as writer:
            await writer.put_node(node)
            await writer.put_node(a_node(name=node.name))

    with pytest.raises(ConflictError):
        await put_two_of_one_name()
    async with store.read() as view:
        assert list(await view.nodes()) == []


async def test_a_cancelled_writer_leaves_nothing_and_lets_the_next_one_in(store: Store) -> None:
    inside = asyncio.Event()

    async def write_and_wait() -> None:
        async with store.write() as writer:
            await writer.emit(an_event())
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write_and_wait())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with store.write() as writer:
        await writer.emit(an_event("node.unreachable"))
    async with store.read() as view:
        assert [event.kind for event in await view.events()] == ["node.unreachable"]


async def test_writers_cancelled_at_any_moment_never_leave_half_a_transaction(store: Store) -> None:
    async def write_pair() -> None:
        async with store.write() as writer:
            await writer.emit(an_event("pair.one"))
            await writer.emit(an_event("pair.two"))

    for turns in range(40):
        task = asyncio.create_task(write_pair())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await write_pair()
    async with store.read() as view:
        kinds = [event.kind for event in await view.events()]
    assert kinds == ["pair.one", "pair.two"] * (len(kinds) // 2)
    assert kinds


async def test_a_view_does_not_change_while_others_write(store: Store) -> None:
    async with store.write() as writer:
        await writer.emit(an_event())
    async with store.read() as view:
        before = await view.events()
        async with store.write() as writer:
            await writer.put_node(a_node())
            await writer.emit(an_event())
        assert await view.events() == before
        assert list(await view.nodes()) == []
    async with store.read() as view:
        assert len(await view.events()) == 2
        assert len(await view.nodes()) == 1


async def test_what_is_not_committed_is_seen_by_its_writer_only(store: Store) -> None:
    async with store.write() as writer:
        await writer.emit(an_event())
        assert await writer.last_event_seq() == 1
        async with store.read() as view:
            assert await view.last_event_seq() == 0


async def test_writers_of_two_stores_come_one_after_another(stores: list[Store]) -> None:
    async with stores[0].write() as writer:
        node = a_node()
        await writer.put_node(node)

    async def add(store: Store) -> int:
        async with store.write() as writer:
            last = len(await writer.commands(node.id, limit=1000))
            number = await writer.add_command(node.id, "launch", {})
            assert number == last + 1
            return number

    numbers = await asyncio.gather(*(add(stores[turn % 2]) for turn in range(60)))
    assert sorted(numbers) == list(range(1, 61))


async def test_writers_of_two_processes_lose_nothing(factory: StoreFactory, store: Store) -> None:
    async with store.write() as writer:
        node = a_node()
        await writer.put_node(node)
    child = await start_writer(
        factory,
        [
            "sys.stdin.readline()",
            "for number in range(50):",
            "    async with store.write() as writer:",
            f"        await writer.add_command({node.id!r}, 'child', {{}})",
            "        await writer.emit(event('child.wrote', str(number)))",
        ],
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert (await child.stdout.readline()) == b"open\n"
    child.stdin.write(b"go\n")
    for number in range(50):
        async with store.write() as writer:
            await writer.add_command(node.id, "parent", {})
            await writer.emit(an_event("parent.wrote", str(number)))
    await child.communicate()
    assert child.returncode == 0
    async with store.read() as view:
        commands = await view.commands(node.id, limit=1000)
        events = await view.events(limit=1000)
    assert [command.seq for command in commands] == list(range(1, 101))
    for kind in ("child", "parent"):
        assert len([command for command in commands if command.kind == kind]) == 50
        assert [event.subject for event in events if event.kind == f"{kind}.wrote"] == [
            str(number) for number in range(50)
        ]


@pytest.mark.parametrize(
    ("mode", "mib", "winners"), [(ClaimMode.EXCLUSIVE, 24_576, 1), (ClaimMode.SHARED, 3000, 8)]
)
async def test_a_raced_device_is_never_claimed_beyond_its_rule(
    stores: list[Store], mode: ClaimMode, mib: int, winners: int
) -> None:
    async with stores[0].write() as writer:
        node, device, workload = await put_ground(writer)

    async def race(store: Store) -> bool:
        placement = a_placement(workload.id, node.id)
        try:
            async with store.write() as writer:
                await writer.put_placement(placement)
                await writer.claim(Claim(placement_id=placement.id, device_id=device.id, mode=mode, mib=mib))
        except ClaimRefusedError:
            return False
        return True

    won = await asyncio.gather(*(race(stores[turn % 2]) for turn in range(40)))
    assert sum(won) == winners
    async with stores[1].read() as view:
        claims = await view.claims(device_id=device.id)
        placements = await view.placements()
    assert {claim.placement_id for claim in claims} == {placement.id for placement in placements}
    assert len(claims) == winners


async def test_what_was_committed_survives_sigkill_and_nothing_else_does(factory: StoreFactory) -> None:
    child = await start_writer(
        factory,
        [
            "for number in range(10_000):",
            "    async with store.write() as writer:",
            "        await writer.emit(event('pair.one', str(number)))",
            "        await writer.emit(event('pair.two', str(number)))",
            "    print(number, flush=True)",
        ],
    )
    assert child.stdout is not None
    acknowledged = -1
    while acknowledged < 25:
        line = (await child.stdout.readline()).strip()
        acknowledged = acknowledged if line == b"open" else int(line)
    child.kill()
    rest = (await child.stdout.read()).split(b"\n")
    acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])
    await child.wait()
    survivor = await factory.open()
    async with survivor.read() as view:
        events = await view.events(limit=30_000)
    subjects = [event.subject for event in events if event.kind == "pair.one"]
    assert subjects == [event.subject for event in events if event.kind == "pair.two"]
    assert subjects[: acknowledged + 1] == [str(number) for number in range(acknowledged + 1)]
    assert len(subjects) <= acknowledged + 2
    await survivor.close()


async def test_an_open_transaction_dies_with_its_process(factory: StoreFactory) -> None:
    child = await start_writer(
        factory,
        [
            "async with store.write() as writer:",
            "    await writer.emit(event('never.seen', 'x'))",
            "    print('emitted', flush=True)",
            "    await asyncio.Event().wait()",
        ],
    )
    assert child.stdout is not None
    assert [await child.stdout.readline() for _ in range(2)] == [b"open\n", b"emitted\n"]
    child.kill()
    await child.wait()
    survivor = await factory.open()
    async with survivor.write() as writer:
        assert await writer.events() == []
        await writer.emit(an_event())
    async with survivor.read() as view:
        assert [event.kind for event in await view.events()] == ["node.ready"]
    await survivor.close()


async def test_a_new_process_goes_on_with_the_numbers_of_the_last(factory: StoreFactory) -> None:
    first = await factory.open()
    async with first.write() as writer:
        node = a_node()
        await writer.put_node(node)
        await writer.emit(an_event())
        await writer.add_command(node.id, "launch", {})
        await writer.acknowledge(node.id, 1)
    await first.close()
    second = await factory.open()
    async with second.write() as writer:
        assert await writer.emit(an_event()) == 2
        assert await writer.add_command(node.id, "launch", {}) == 2
    await second.close()


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    await store.close()
    with pytest.raises(StorageError, match="closed"):
        async with store.read():
            pass
    with pytest.raises(StorageError, match="closed"):
        async with store.write():
            pass


async def test_closing_waits_for_the_writer_at_work(store: Store) -> None:
    async with store.write() as writer:
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        await writer.emit(an_event())
        assert not closing.done()
    await closing


async def test_closing_waits_for_an_open_view(store: Store) -> None:
    async with store.read() as view:
        closing = asyncio.create_task(store.close())
        for _ in range(20):
            assert await view.events() == []
        assert not closing.done()
    await closing


async def test_many_readers_wait_for_their_turn(store: Store) -> None:
    async with store.write() as writer:
        _, device, workload = await put_ground(writer)
        placement = a_placement(workload.id, device.node_id)
        await writer.put_placement(placement)
        await writer.claim(shared(placement, device, 1))

    async def look() -> int:
        async with store.read() as view:
            return len(await view.nodes()) + len(await view.claims())

    assert await asyncio.gather(*(look() for _ in range(200))) == [2] * 200


async def test_a_task_does_not_wait_for_itself(store: Store) -> None:
    async with store.write():
        with pytest.raises(RuntimeError, match="already"):
            async with store.write():
                pass
