"""Control's services beside a model of its nodes: people, nodes, the network and crashes do what they like.

The layer below HTTP, with the real store. After every step: no device is held beyond the claims rule, what lives
holds its claims and what is final holds none, nothing that still runs is called final (its devices would go to
somebody else), the feed shows nothing of a node without a session, and the events folded tell what the tables say.
At the end everybody is healthy and obedient, and what is wanted must run without a hand.
"""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from control_stage import cpu_of, gpu_of
from crashing_store import CrashError, CrashingStore
from event_fold import Fold
from fleet_samples import NOON, a_join_token, new_database
from gpupool.contracts.agent_link import Report
from gpupool.contracts.spec import SpecFile
from gpupool.control import tending
from gpupool.control.feeding import endpoints_view
from gpupool.control.joining import forget_sessions, join
from gpupool.control.pool import Pool
from gpupool.control.reconciling import Reconciler
from gpupool.control.reporting import take_report
from gpupool.control.snapshot import Snapshot, load_snapshot
from gpupool.control.wanting import delete, deploy, scale
from gpupool.core.clock import FakeClock
from gpupool.core.errors import NodeRemovedError
from gpupool.core.ids import new_id
from gpupool.fleet.claims import Claim, ClaimMode
from gpupool.fleet.devices import DeviceKind
from gpupool.fleet.join_tokens import JoinToken
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.ports.store import Reader
from gpupool.fleet.workloads import Workload
from gpupool.store.open import open_store
from model_agent import ModelAgent
from pool_world import join_request

T = TypeVar("T")
NAMES = ("chat", "images", "proofs")
SMALL: dict[str, object] = {"memory_mb": 512}
SHAPES = (SMALL, {"memory_mb": 1500}, {**SMALL, "port": 30_100}, {"gpu_count": 1}, {"gpu_count": 2})
CPU_MIB = {"node-a": 4096, "node-b": 2048}
GPUS = {"node-a": 2, "node-b": 1}
MEMORY_DISK = Path("/dev/shm")
"""Where there is one, syncing every transaction costs nothing there."""
ROUNDS = 30
"""Looks of 5 s each: enough for the longest back-off and for one placement after another."""


class Way(StrEnum):
    """What becomes of a report."""

    TAKEN = "taken"
    LOST = "lost"
    LATE = "late"
    """The agent gives up waiting; control gets it some time later."""
    TWICE = "twice"
    """Taken, and a copy comes some time later."""
    UNANSWERED = "unanswered"
    """Taken, but the agent never hears so."""
    CRASHED = "crashed"
    """Control dies on it before it has committed, and starts again."""


ways = st.sampled_from((Way.TAKEN, Way.LATE, *Way))
agents = st.integers(0, 1)


class PoolMachine(RuleBasedStateMachine):
    """One pool of two nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None)
        self.path = new_database(Path(self.folder.name))
        self.clock = FakeClock(NOON)
        self.fold = Fold()
        self.strays: list[tuple[str, Report]] = []
        """Reports under way, with the node that signed them."""
        self.agents = [
            ModelAgent(name, [cpu_of(name, CPU_MIB[name]), *(gpu_of(name, i) for i in range(GPUS[name]))])
            for name in CPU_MIB
        ]

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the machine's one event loop."""
        return self.runner.run(work)

    # ---- control -------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        """Start control, let both nodes join, and want something that nobody has placed yet."""
        self.do(self._start_control())
        for agent in self.agents:
            self.do(self._join(agent))
        self.want(NAMES[0], SHAPES[3], 2)

    async def _start_control(self) -> None:
        self.store = CrashingStore(await open_store(self.path))
        self.pool = Pool(self.store, self.clock)
        self.pool.random.seed(7)
        await forget_sessions(self.pool)
        self.reconciler = Reconciler(self.pool)

    async def _restart_control(self) -> None:
        """What was on its way to the old process is lost with it; its agents find their sessions unknown."""
        self.strays.clear()
        await self.store.close()
        await self._start_control()

    async def _join(self, agent: ModelAgent, token: JoinToken | None = None) -> None:
        async with self.pool.change() as change:
            node = await join(change, join_request(agent.name), token)
        agent.node_id = node.id

    @rule()
    def restart_control(self) -> None:
        """Stop control in good order and start it again."""
        self.do(self._restart_control())

    @rule(crash_in=st.none() | st.integers(1, 3))
    def settle(self, crash_in: int | None) -> None:
        """Let the reconciler take its steps, or die in one of its transactions."""
        self.do(self._settle(crash_in))

    async def _settle(self, crash_in: int | None = None) -> None:
        self.store.crash_in = crash_in
        try:
            await self.reconciler.settle()
        except CrashError:
            await self._restart_control()
        else:
            snapshot = await self.pool.snapshot()
            self._check_counts(snapshot)
            await self._check_view(snapshot)
        self.store.crash_in = None

    async def _check_view(self, snapshot: Snapshot) -> None:
        """What was kept up to date from change to change is what the store holds."""
        async with self.store.read() as reader:
            stored = await load_snapshot(reader, snapshot.leaving)
        # A sign of life alone is news to nobody.
        seen = {node.id: node.seen_at for node in stored.nodes.values()}
        nodes = {name: replace(node, seen_at=seen[name]) for name, node in snapshot.nodes.items()}
        assert list(nodes) == list(stored.nodes)
        assert list(snapshot.workloads) == list(stored.workloads)
        shown = replace(
            snapshot, nodes=nodes, claims={name: list(held) for name, held in snapshot.claims.items()}
        )
        assert shown == stored

    @rule(seconds=st.sampled_from((1, 6, 25)))
    def wait(self, seconds: int) -> None:
        """Let time pass, in which nobody says anything."""
        self.clock.advance(seconds)

    @rule()
    def hear_nothing(self) -> None:
        """Let control be awake while nobody says anything for longer than it waits."""
        for _ in range(5):
            self.clock.advance(5)
            self.do(self._settle())

    # ---- people --------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), shape=st.sampled_from(SHAPES), replicas=st.integers(0, 3))
    def want(self, name: str, shape: dict[str, object], replicas: int) -> None:
        """Want a workload, new or changed."""
        values = {"name": name, "command": ["serve"], "replicas": replicas, **shape}
        self.do(self._want(SpecFile.model_validate(values)))

    async def _want(self, spec: SpecFile) -> None:
        async with self.pool.change() as change:
            await deploy(change, spec, self.pool.catalog)

    @rule(name=st.sampled_from(NAMES), wanted=st.none() | st.integers(0, 3))
    def rescale(self, name: str, wanted: int | None) -> None:
        """Want another number of instances, or the workload no more."""
        self.do(self._rescale(name, wanted))

    async def _rescale(self, name: str, wanted: int | None) -> None:
        async with self.pool.change() as change:
            workload = await change.writer.workload_by_name(name)
            if workload is not None and wanted is None:
                await delete(change, workload)
            elif workload is not None and wanted is not None:
                await scale(change, workload, wanted)

    @rule(which=agents, draining=st.booleans())
    def drain(self, which: int, draining: bool) -> None:
        """Drain a node, or take that back."""
        self.do(self._drain(which, draining))

    async def _drain(self, which: int, draining: bool) -> None:
        async with self.pool.change() as change:
            node = await change.writer.node(self.agents[which].node_id)
            if node is not None and not node.removed:
                await tending.set_drain(change, node, draining=draining)

    @rule(which=agents)
    def remove(self, which: int) -> None:
        """Remove a node with whatever it runs; its agent learns of it when it next speaks."""
        self.do(self._remove(which))

    async def _remove(self, which: int) -> None:
        async with self.pool.change() as change:
            node = await change.writer.node(self.agents[which].node_id)
            if node is None or node.removed:
                return
            await tending.remove(change, node, force=True)
        self.pool.forget_node(node.id)

    async def _come_back(self, agent: ModelAgent) -> None:
        """End everything, as a removed node's agent does, and let a person add the machine again."""
        agent.restart(lost=True)
        self.clock.advance(1)
        await self._join(agent, a_join_token(new_id("jt"), created_at=self.clock.now()))

    # ---- nodes and the network -----------------------------------------------------------------------------

    @rule(which=agents, way=ways)
    def connect(self, which: int, way: Way) -> None:
        """Begin a new session with a complete report."""
        agent = self.agents[which]
        self.do(self._send(agent, agent.connect(), way))

    @rule(which=agents, way=ways)
    def report(self, which: int, way: Way) -> None:
        """Report what is news (a heartbeat where nothing is)."""
        agent = self.agents[which]
        if agent.session is not None:
            self.do(self._send(agent, agent.report(), way))

    async def _send(self, agent: ModelAgent, report: Report, way: Way) -> None:
        reply = None
        signer = agent.node_id
        if way in {Way.LATE, Way.TWICE}:
            self.strays.append((signer, report))
        try:
            if way in {Way.TAKEN, Way.TWICE}:
                reply = await take_report(self.pool, signer, report)
            elif way is Way.UNANSWERED:
                await self._arrive(signer, report)
            elif way is Way.CRASHED:
                self.store.crash_in = 1
                reply = await take_report(self.pool, signer, report)
        except CrashError:
            await self._restart_control()
        except NodeRemovedError:
            self.store.crash_in = None
            await self._come_back(agent)
            return
        self.store.crash_in = None
        if reply is None or not (reply.session_known or report.complete):
            agent.session = None
        else:
            agent.taken(report)

    async def _arrive(self, signer: str, report: Report) -> None:
        """Let a report come whose answer nobody hears."""
        with suppress(NodeRemovedError):
            await take_report(self.pool, signer, report)

    @rule(which=agents, leaving=st.booleans())
    def be_overtaken(self, which: int, leaving: bool) -> None:
        """Let the first or last report of a session come after the next session has begun and got work."""
        agent = self.agents[which]
        report = agent.connect()
        if leaving:
            report = agent.farewell()
            agent.restart()
        agent.session = None
        signer = agent.node_id
        self.everything_goes_well()
        self.do(self._arrive(signer, report))

    @precondition(lambda self: self.strays)
    @rule(index=st.integers(0, 9))
    def arrive_late(self, index: int) -> None:
        """Let a report come that its agent no longer waits for."""
        self.do(self._arrive(*self.strays.pop(index % len(self.strays))))

    @rule(which=agents, most=st.integers(1, 9))
    def listen(self, which: int, most: int) -> None:
        """Take some commands and carry them out."""
        agent = self.agents[which]
        if agent.session is not None:
            self.do(self._listen(agent, most))

    async def _listen(self, agent: ModelAgent, most: int) -> None:
        async with self.store.read() as reader:
            commands = await reader.commands(agent.node_id, after=agent.last_seq, limit=most)
        numbers = [command.seq for command in commands]
        assert numbers == sorted(set(numbers))
        for command in commands:
            agent.handle(command)

    @rule(which=agents, index=st.integers(0, 9), what=st.sampled_from(("go on", "go on", "sicken", "die")))
    def change_instance(self, which: int, index: int, what: str) -> None:
        """Let something happen to one instance."""
        agent = self.agents[which]
        if agent.instances:
            name = list(agent.instances)[index % len(agent.instances)]
            if what == "go on":
                agent.go_on(name)
            else:
                agent.falter(name, dies=what == "die")

    @rule()
    def everything_goes_well(self) -> None:
        """Let control look, and the nodes take their commands, carry them out and tell, with no fault."""
        self.do(self._settle())
        for agent in self.agents:
            self.do(self._behave(agent))

    @rule(which=agents, what=st.sampled_from(("restart", "reboot", "lose", "begin to leave")))
    def disturb(self, which: int, what: str) -> None:
        """Start an agent anew, perhaps with its machine or without what it knew; or let it begin to stop."""
        agent = self.agents[which]
        if what == "begin to leave":
            agent.leaving = True
        else:
            agent.restart(reboot=what == "reboot", lost=what == "lose")

    @rule(which=agents, way=ways)
    def leave(self, which: int, way: Way) -> None:
        """Stop an agent in good order; another one starts in its place, and is not connected yet."""
        agent = self.agents[which]
        if agent.session is not None:
            self.do(self._send(agent, agent.farewell(), way))
            agent.restart()

    @rule(which=agents, index=st.integers(0, 2))
    def toggle_device(self, which: int, index: int) -> None:
        """Let a device vanish from the next inventory, or come back."""
        agent = self.agents[which]
        agent.hidden ^= {agent.devices[index % len(agent.devices)].id}

    @rule(which=agents)
    def lose_everything(self, which: int) -> None:
        """Let a node that runs something come back with an empty disk."""
        self.everything_goes_well()
        self.agents[which].restart(lost=True)
        self.everything_goes_well()

    @rule()
    def move_card(self) -> None:
        """Put one card of a machine into the other, for which both are turned off and on again."""
        giver, taker = self.agents if len(self.agents[0].devices) > 1 else self.agents[::-1]
        taker.devices.append(giver.devices.pop())
        for agent in self.agents:
            agent.restart(reboot=True)

    # ---- what must always hold -----------------------------------------------------------------------------

    @invariant()
    def rules_hold(self) -> None:
        """Look at the store as committed, and at nothing that control keeps in memory."""
        self.do(self._check())

    async def _check(self) -> None:
        async with self.store.read() as reader:
            self.fold.take(await reader.events(after=self.fold.seq, limit=100_000))
            await self.fold.check(reader)
            await self._check_claims(reader)
        snapshot = await self.pool.snapshot()
        assert snapshot.seq == self.fold.seq, "a view of the pool is older than its last change"
        view = endpoints_view(snapshot, None, complete=True)
        for endpoint in view.endpoints:
            assert snapshot.nodes[endpoint.node].session is not None
            assert self.fold.placements[endpoint.placement] in {
                PlacementState.ACTIVE,
                PlacementState.DRAINING,
            }

    async def _check_claims(self, reader: Reader) -> None:
        live = {placement.id: placement for placement in await reader.placements(live=True, limit=100_000)}
        by_device: dict[str, list[Claim]] = defaultdict(list)
        by_placement: dict[str, list[Claim]] = defaultdict(list)
        for claim in await reader.claims():
            by_device[claim.device_id].append(claim)
            by_placement[claim.placement_id].append(claim)
        assert by_placement.keys() == live.keys()
        for device in await reader.devices():
            held = by_device[device.id]
            if any(claim.mode is ClaimMode.EXCLUSIVE for claim in held):
                assert len(held) == 1
                assert device.kind is DeviceKind.GPU
            assert sum(claim.mib for claim in held) <= device.memory_mib
        removed = {node.id for node in await reader.nodes(removed=True) if node.removed}
        for agent in self.agents:
            if agent.node_id in removed:
                # It may not have heard so yet; a person has said that its devices are no longer the pool's.
                continue
            for name, instance in agent.instances.items():
                if instance.running and not instance.revived:
                    assert name in live, f"{name} runs on {agent.name}, and its devices were given away"
                    gpus = {claim.device_id for claim in by_placement[name]} & set(instance.order.device_ids)
                    assert gpus == set(instance.order.device_ids)

    def _check_counts(self, snapshot: Snapshot) -> None:
        """After the reconciler's look nobody has more than is wanted; what is old or to move only beside its successor."""
        for workload in snapshot.workloads.values():
            staying = [p for p in snapshot.live_of(workload.id) if p.state is not PlacementState.DRAINING]
            current = [p for p in staying if p.workload_version == workload.version]
            wanted = 0 if workload.deleted else workload.wanted
            settled = [p for p in current if not snapshot.nodes[p.node_id].draining]
            active = sum(p.state is PlacementState.ACTIVE for p in settled)
            assert len(settled) <= wanted
            assert len(staying) - len(settled) <= wanted - active

    # ---- the end -------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Let everybody be healthy and obedient: what is wanted must come to run, or be impossible."""
        try:
            if hasattr(self, "store"):
                self.do(self._come_to_rest())
        finally:
            if hasattr(self, "store"):
                self.do(self.store.close())
            self.runner.close()
            self.folder.cleanup()

    async def _behave(self, agent: ModelAgent) -> None:
        while agent.session is None:
            await self._send(agent, agent.connect(), Way.TAKEN)
        await self._listen(agent, 1000)
        for name in list(agent.instances):
            for _ in range(2):
                agent.go_on(name)
        await self._send(agent, agent.report(), Way.TAKEN)

    async def _come_to_rest(self) -> None:
        for stray in self.strays:
            await self._arrive(*stray)
        for which, agent in enumerate(self.agents):
            agent.hidden.clear()
            agent.restart()
            await self._drain(which, draining=False)
        for _ in range(ROUNDS):
            self.clock.advance(5)
            for agent in self.agents:
                await self._behave(agent)
            await self._settle()
        await self._check()
        await self._check_rest(await self.pool.snapshot())

    async def _check_rest(self, snapshot: Snapshot) -> None:
        running = {name for agent in self.agents for name in agent.instances}
        assert running == {placement.id for placement in snapshot.live}
        for workload in snapshot.workloads.values():
            live = snapshot.live_of(workload.id)
            assert {placement.state for placement in live} <= {PlacementState.ACTIVE}, (workload, live)
            wanted = 0 if workload.deleted else workload.wanted
            current = [p for p in live if p.workload_version == workload.version]
            if len(current) < wanted:
                assert workload.why is not None
                assert not any(_fits(workload, snapshot, agent.node_id) for agent in self.agents)
            else:
                assert (len(live), workload.why) == (wanted, None)
        for agent in self.agents:
            async with self.store.read() as reader:
                assert list(await reader.commands(agent.node_id)) == []


def _fits(workload: Workload, snapshot: Snapshot, node_id: str) -> bool:
    """Tell, in the plainest way, whether one more instance would find room on a node."""
    spec, here = workload.spec, snapshot.live_on(node_id)
    if spec.port is not None and any(placement.port == spec.port for placement in here):
        return False
    gpus = [device for device in snapshot.devices[node_id] if device.kind is DeviceKind.GPU]
    if spec.selector.gpu_count:
        return sum(not snapshot.claims_on(gpu.id) for gpu in gpus) >= spec.selector.gpu_count
    (cpu,) = [device for device in snapshot.devices[node_id] if device.kind is DeviceKind.CPU]
    return sum(claim.mib for claim in snapshot.claims_on(cpu.id)) + spec.memory_mib <= cpu.memory_mib


PoolMachine.TestCase.settings = settings(
    max_examples=12, stateful_step_count=25, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestPoolMachine = PoolMachine.TestCase
