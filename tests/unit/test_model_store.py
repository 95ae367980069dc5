"""The real SQLite store beside a model in memory: random transactions, failures in their middle, restarts, crashes.

Every rule is one or more changes in one transaction that commits or is abandoned; the model takes them over only in
the first case. A crash copies the files as they lie on disk at that moment, an open transaction included, and goes
on with the copy: what was committed is there, nothing else is.
"""

import asyncio
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Coroutine
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fleet_samples import a_device, a_node, a_placement, a_workload, an_event, later, new_database
from gpupool.core.errors import ConflictError
from gpupool.fleet.claims import Claim, ClaimMode, refusal
from gpupool.fleet.devices import Device, DeviceKind
from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.placements import PLACEMENT_MACHINE, Placement, PlacementState
from gpupool.fleet.ports.store import Reader, Store, Writer
from gpupool.fleet.workloads import Workload
from gpupool.store.open import open_store

T = TypeVar("T")
MEMORY_MIB = 100
MEMORY_DISK = Path("/dev/shm")
"""Where there is one, syncing every transaction costs nothing there."""
index = st.integers(0, 9)
modes = st.sampled_from(ClaimMode)
sizes = st.sampled_from((0, 30, MEMORY_MIB, MEMORY_MIB + 1))


class AbandonedError(Exception):
    """The block of a transaction has failed."""


@dataclass
class Model:
    """What the store should hold, in the plainest form."""

    nodes: dict[str, Node] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    claims: dict[tuple[str, str], Claim] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)
    commands: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    last_command: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seen: set[tuple[str, str]] = field(default_factory=set)


class Transaction:
    """Changes made to the store and to a copy of the model at once."""

    def __init__(self, writer: Writer, model: Model) -> None:
        self.writer, self.model = writer, model

    async def emit(self, kind: str, subject: str) -> None:
        """Append an event."""
        await self.writer.emit(an_event(kind, subject))
        self.model.events.append((kind, subject))

    async def place(self, workload: Workload, node: Node) -> Placement:
        """Make a placement, with its event and its command."""
        placement = a_placement(workload.id, node.id)
        await self.writer.put_placement(placement)
        self.model.placements[placement.id] = placement
        await self.emit("placement.planned", placement.id)
        await self.command(node)
        return placement

    async def command(self, node: Node) -> None:
        """Queue a command: its number is the next one, whatever was acknowledged or abandoned before."""
        seq = await self.writer.add_command(node.id, "start", {"text": "größer"})
        self.model.last_command[node.id] += 1
        assert seq == self.model.last_command[node.id]
        self.model.commands[node.id].append(seq)

    async def move(self, old: Placement, to: PlacementState) -> None:
        """Move a placement, with its event; the store refuses what the state machine refuses."""
        stored = self.model.placements[old.id]
        moved = a_placement(old.workload_id, old.node_id, id=old.id, state=to, changed_at=later(1))
        if not PLACEMENT_MACHINE.allows(stored.state, to):
            try:
                await self.writer.put_placement(moved)
            except ConflictError:
                return
            raise AssertionError(f"{stored.state} became {to}")
        await self.writer.put_placement(moved)
        self.model.placements[old.id] = moved
        await self.emit(f"placement.{to.value}", old.id)
        if not moved.live:
            self.model.claims = {key: kept for key, kept in self.model.claims.items() if key[0] != old.id}

    async def claim(self, placement: Placement, device: Device, mode: ClaimMode, mib: int) -> None:
        """Ask for a claim: granted or refused as the rule says."""
        claim = Claim(placement_id=placement.id, device_id=device.id, mode=mode, mib=mib)
        held = [kept for key, kept in self.model.claims.items() if key[1] == device.id]
        able = (
            self.model.placements[placement.id].live
            and device.node_id == placement.node_id
            and (placement.id, device.id) not in self.model.claims
            and refusal(device, held, mode, mib) is None
        )
        try:
            await self.writer.claim(claim)
        except ConflictError:
            assert not able
        else:
            assert able
            self.model.claims[placement.id, device.id] = claim


class StoreMachine(RuleBasedStateMachine):
    """One store, its model, and what may happen to both."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None)
        self.path = new_database(Path(self.folder.name))
        self.model = Model()
        self.crashes = 0
        self.store: Store = self.do(open_store(self.path))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the machine's one event loop."""
        return self.runner.run(work)

    @initialize()
    def begin(self) -> None:
        """Keep two nodes with a GPU and a cpu device each, and two workloads."""
        self.do(self._begin())

    async def _begin(self) -> None:
        async with self.store.write() as writer:
            for _ in range(2):
                node, workload = a_node(), a_workload()
                await writer.put_node(node)
                await writer.put_workload(workload)
                self.model.nodes[node.id], self.model.workloads[workload.id] = node, workload
                for kind in DeviceKind:
                    device = a_device(node.id, kind=kind, memory_mib=MEMORY_MIB)
                    await writer.put_device(device)
                    self.model.devices[device.id] = device

    @rule(
        steps=st.lists(
            st.one_of(
                st.tuples(st.just("place"), index, index, index, modes, sizes),
                st.tuples(st.just("place"), index, index, index, modes, sizes),
                st.tuples(st.just("claim"), index, index, modes, sizes),
                st.tuples(st.just("move"), index, st.sampled_from(PlacementState)),
                st.tuples(st.just("end"), index),
                st.tuples(st.just("end"), index),
                st.tuples(st.just("command"), index),
                st.tuples(st.just("acknowledge"), index, st.integers(0, 12)),
                st.tuples(st.just("node"), index, st.sampled_from(NodeState)),
                st.tuples(st.just("remember"), index, index),
            ),
            min_size=1,
            max_size=6,
        ),
        fate=st.sampled_from(("commit", "commit", "commit", "abandon", "crash")),
    )
    def transaction(self, steps: list[tuple[Any, ...]], fate: str) -> None:
        """Make some changes together, and keep all of them or none."""
        self.do(self._transaction(steps, fate))

    async def _transaction(self, steps: list[tuple[Any, ...]], fate: str) -> None:
        changed = deepcopy(self.model)
        try:
            async with self.store.write() as writer:
                under_way = Transaction(writer, changed)
                for name, *arguments in steps:
                    await getattr(self, f"_{name}")(under_way, *arguments)
                if fate == "crash":
                    self._copy_files()
                _fail_unless(fate == "commit")
        except AbandonedError:
            pass
        else:
            self.model = changed
        if fate == "crash":
            await self.store.close()
            self.store = await open_store(self.path)

    def _copy_files(self) -> None:
        """Take the files as a power cut would leave them."""
        self.crashes += 1
        folder = Path(self.folder.name) / f"after-{self.crashes}"
        folder.mkdir()
        for file in self.path.parent.glob("pool.db*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, folder)
        self.path = folder / "pool.db"

    async def _place(
        self, under_way: Transaction, workload: int, node: int, device: int, mode: ClaimMode, mib: int
    ) -> None:
        model = under_way.model
        where = _pick(model.nodes, node)
        placement = await under_way.place(_pick(model.workloads, workload), where)
        own = {name: found for name, found in model.devices.items() if found.node_id == where.id}
        await under_way.claim(placement, _pick(own, device), mode, mib)

    async def _move(self, under_way: Transaction, which: int, to: PlacementState) -> None:
        if under_way.model.placements:
            await under_way.move(_pick(under_way.model.placements, which), to)

    async def _end(self, under_way: Transaction, which: int) -> None:
        for to in (PlacementState.DRAINING, PlacementState.ENDED):
            await self._move(under_way, which, to)

    async def _claim(
        self, under_way: Transaction, which: int, device: int, mode: ClaimMode, mib: int
    ) -> None:
        model = under_way.model
        if model.placements:
            await under_way.claim(_pick(model.placements, which), _pick(model.devices, device), mode, mib)

    async def _command(self, under_way: Transaction, node: int) -> None:
        await under_way.command(_pick(under_way.model.nodes, node))

    async def _acknowledge(self, under_way: Transaction, node: int, seq: int) -> None:
        node_id = _pick(under_way.model.nodes, node).id
        await under_way.writer.acknowledge(node_id, seq)
        kept = [number for number in under_way.model.commands[node_id] if number > seq]
        under_way.model.commands[node_id] = kept

    async def _node(self, under_way: Transaction, node: int, to: NodeState) -> None:
        model = under_way.model
        old = _pick(model.nodes, node)
        try:
            moved = old.moved(to)
        except ConflictError:
            return
        await under_way.writer.put_node(moved)
        model.nodes[old.id] = moved
        await under_way.emit(f"node.{to.value}", old.id)

    async def _remember(self, under_way: Transaction, scope: int, key: int) -> None:
        name = (f"report:{scope % 2}", str(key))
        assert await under_way.writer.first_time(*name) == (name not in under_way.model.seen)
        under_way.model.seen.add(name)

    @rule()
    def restart(self) -> None:
        """Close the store in good order and open it again."""
        self.do(self._restart())

    async def _restart(self) -> None:
        await self.store.close()
        self.store = await open_store(self.path)

    @invariant()
    def the_store_holds_what_the_model_says(self) -> None:
        """Compare everything, in one consistent view."""
        self.do(self._compare())

    async def _compare(self) -> None:
        async with self.store.read() as reader:
            await _compare_records(reader, self.model)
            await _compare_streams(reader, self.model)

    def teardown(self) -> None:
        """Give everything back."""
        self.do(self.store.close())
        self.runner.close()
        self.folder.cleanup()


async def _compare_records(reader: Reader, model: Model) -> None:
    assert {node.id: node for node in await reader.nodes(removed=True)} == model.nodes
    assert {node.id for node in await reader.nodes()} == {
        node.id for node in model.nodes.values() if not node.removed
    }
    assert {device.id: device for device in await reader.devices()} == model.devices
    assert {workload.id: workload for workload in await reader.workloads()} == model.workloads
    placements = {placement.id: placement for placement in await reader.placements()}
    assert placements == model.placements
    assert {one.id for one in await reader.placements(live=True)} == {
        one.id for one in placements.values() if one.live
    }
    claims = {(claim.placement_id, claim.device_id): claim for claim in await reader.claims()}
    assert claims == model.claims
    assert all(placements[placement_id].live for placement_id, _ in claims)
    for device in model.devices.values():
        held = [claim for claim in claims.values() if claim.device_id == device.id]
        alone = any(claim.mode is ClaimMode.EXCLUSIVE for claim in held)
        assert not alone or len(held) == 1
        assert sum(claim.mib for claim in held if claim.mode is ClaimMode.SHARED) <= device.memory_mib


async def _compare_streams(reader: Reader, model: Model) -> None:
    events = await reader.events(limit=10_000)
    assert [(event.kind, event.subject) for event in events] == model.events
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers))
    told = {event.subject: event.kind for event in events if event.kind.startswith("placement.")}
    placements = await reader.placements()
    assert told == {one.id: f"placement.{one.state.value}" for one in placements}
    for node_id in model.nodes:
        assert [command.seq for command in await reader.commands(node_id)] == model.commands[node_id]


def _fail_unless(committing: bool) -> None:
    if not committing:
        raise AbandonedError


def _pick(things: dict[str, T], which: int) -> T:
    return list(things.values())[which % len(things)]


StoreMachine.TestCase.settings = settings(
    max_examples=12, stateful_step_count=20, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestStoreMachine = StoreMachine.TestCase
