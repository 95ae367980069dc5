"""Random walks: people, a node and time do what they like, and what must hold holds after every step.

At the end the node does what it is told, and the pool must come to rest with everything placed as wanted, or with a
reason why not.
"""

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_stage import cpu_of
from fleet_samples import NOON, new_database
from gpupool.contracts.agent_link import JoinRequest, Report
from gpupool.contracts.spec import SpecFile
from gpupool.control.feeding import endpoints_view
from gpupool.control.joining import join
from gpupool.control.pool import Pool
from gpupool.control.reconciling import Reconciler
from gpupool.control.reporting import take_report
from gpupool.control.wanting import delete, deploy
from gpupool.core.clock import FakeClock
from gpupool.core.ids import new_id
from gpupool.fleet.placements import LIVE_STATES, PlacementState
from gpupool.store.open import open_store

MEMORY = 4096
NAMES = ("chat", "images")
REPORTED = tuple(state for state in PlacementState if state is not PlacementState.PLANNED)
moves = st.one_of(
    st.tuples(st.just("want"), st.sampled_from(NAMES), st.sampled_from((512, 1024, 3000)), st.integers(0, 3)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("say"), st.integers(0, 5), st.sampled_from(REPORTED)),
    st.tuples(st.just("fetch")),
    st.tuples(st.just("reconnect"), st.booleans()),
    st.tuples(st.just("leave")),
    st.tuples(st.just("wait"), st.sampled_from((1, 30))),
)


class Walk:
    """One pool with one node, whose agent knows what it runs."""

    def __init__(self, pool: Pool, clock: FakeClock) -> None:
        self.pool, self.clock = pool, clock
        self.reconciler = Reconciler(pool)
        self.node_id = ""
        self.session = "s-0"
        self.here: dict[str, PlacementState] = {}
        self.seq = 0

    async def join(self) -> None:
        """Let the node join; its inventory comes later."""
        key = "A" * 43 + "="
        async with self.pool.change() as change:
            node = await join(change, JoinRequest(name="node-a", public_key=key, address="h"))
        self.node_id = node.id

    async def report(self, **fields: object) -> None:
        """Report in the present session."""
        values = {"report_id": new_id("rep"), "sent_at": NOON, "session": self.session, **fields}
        await take_report(self.pool, self.node_id, Report.model_validate(values))

    async def want(self, name: str, memory: int, replicas: int) -> None:
        """Want a workload as described."""
        values = {"name": name, "command": ["serve"], "memory_mb": memory, "replicas": replicas}
        async with self.pool.change() as change:
            await deploy(change, SpecFile.model_validate(values), self.pool.catalog)

    async def delete(self, name: str) -> None:
        """Want a workload no more."""
        async with self.pool.change() as change:
            workload = await change.writer.workload_by_name(name)
            if workload is not None:
                await delete(change, workload)

    async def say(self, index: int, state: PlacementState) -> None:
        """Report any state of any live placement, sensible or not."""
        live = (await self.pool.snapshot()).live
        if live:
            chosen = live[index % len(live)].id
            self.here[chosen] = state
            await self.report(placements=[{"placement_id": chosen, "state": state, "port": 30001}])

    async def fetch(self) -> None:
        """Take the commands there are, carry them out and acknowledge them."""
        async with self.pool.store.read() as reader:
            commands = await reader.commands(self.node_id, after=self.seq)
        for command in commands:
            self.seq = command.seq
            name = str(command.payload["placement_id"])
            self.here[name] = PlacementState.ACTIVE if command.kind == "start" else PlacementState.ENDED
        placements = [
            {"placement_id": name, "state": state, "port": 30001} for name, state in self.here.items()
        ]
        await self.report(placements=placements, acknowledged=self.seq)
        self.here = {name: state for name, state in self.here.items() if state in LIVE_STATES}

    async def reconnect(self, forgetful: bool = False) -> None:
        """Connect anew with a full inventory; a forgetful agent has lost everything it ran."""
        if forgetful:
            self.here.clear()
        self.session = new_id("rep")
        placements = [{"placement_id": name, "state": state} for name, state in self.here.items()]
        await self.report(complete=True, devices=[cpu_of("node-a", MEMORY)], placements=placements)

    async def leave(self) -> None:
        """Stop in good order."""
        self.here.clear()
        await self.report(leaving=True)

    async def wait(self, seconds: int) -> None:
        """Let time pass."""
        self.clock.advance(seconds)

    async def check(self) -> None:
        """Assert what must always hold."""
        snapshot = await self.pool.snapshot()
        live = {placement.id: placement for placement in snapshot.live}
        assert set(snapshot.claims) == set(live)
        assert sum(claim.mib for claims in snapshot.claims.values() for claim in claims) <= MEMORY
        for workload in snapshot.workloads.values():
            placed = [
                placement
                for placement in live.values()
                if placement.workload_id == workload.id
                and placement.workload_version == workload.version
                and placement.state is not PlacementState.DRAINING
            ]
            assert len(placed) <= (0 if workload.deleted else workload.wanted)
        view = endpoints_view(snapshot, None, complete=True)
        if snapshot.nodes[self.node_id].session is None:
            assert view.endpoints == []
        assert {endpoint.placement for endpoint in view.endpoints} <= set(live)

    async def come_to_rest(self) -> None:
        """Be a good agent until nothing moves, and assert that everything is as wanted or explained."""
        self.here = {name: state for name, state in self.here.items() if state is PlacementState.ACTIVE}
        await self.reconnect()
        for _ in range(12):
            self.clock.advance(timedelta(minutes=1).seconds)
            await self.reconciler.settle()
            await self.fetch()
            await self.check()
        snapshot = await self.pool.snapshot()
        for workload in snapshot.workloads.values():
            live = snapshot.live_of(workload.id)
            states = {placement.state for placement in live}
            assert states <= {PlacementState.ACTIVE}, (workload, live)
            if workload.deleted:
                assert live == []
                continue
            # An old version stays where the new one does not fit; then there is a reason.
            current = [placement for placement in live if placement.workload_version == workload.version]
            assert len(live) <= workload.wanted
            assert (workload.why is None) == (len(current) == workload.wanted)


async def walk(steps: list[tuple[object, ...]], folder: Path) -> None:
    """Take the steps one by one."""
    clock = FakeClock(NOON)
    store = await open_store(new_database(folder))
    try:
        walker = Walk(Pool(store, clock), clock)
        await walker.join()
        for name, *arguments in steps:
            await getattr(walker, str(name))(*arguments)
            await walker.reconciler.settle()
            await walker.check()
        await walker.come_to_rest()
    finally:
        await store.close()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(moves, max_size=14))
def test_whatever_happens_the_rules_hold_and_the_pool_comes_to_rest(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(walk(steps, Path(folder)))
