"""A pool over the real store for tests of control's rules: agents say what the test says, and its clock stands still."""

from control_stage import cpu_of
from fleet_samples import NOON
from gpupool.contracts.agent_link import DeviceReport, JoinRequest, PlacementReport, Report
from gpupool.contracts.spec import SpecFile
from gpupool.control.joining import join
from gpupool.control.pool import Pool
from gpupool.control.reconciling import Reconciler
from gpupool.control.reporting import take_report
from gpupool.control.wanting import deploy
from gpupool.core.clock import FakeClock
from gpupool.core.ids import new_id
from gpupool.fleet.nodes import Node
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.fleet.workloads import Workload


def join_request(name: str = "node-a", **fields: object) -> JoinRequest:
    """Return the request of a node whose key follows from its name."""
    key = f"{name:A<43}="[:43].replace("-", "+") + "="
    return JoinRequest.model_validate({"name": name, "public_key": key, "address": "h", **fields})


class World:
    """One pool, its clock and its reconciler."""

    def __init__(self, pool: Pool, clock: FakeClock) -> None:
        self.pool, self.clock = pool, clock
        self.reconciler = Reconciler(pool)

    async def join(self, name: str = "node-a", *devices: DeviceReport) -> str:
        """Let a node join and show its devices (one CPU unless given)."""
        async with self.pool.change() as change:
            node = await join(change, join_request(name))
        await self.report(node.id, complete=True, devices=list(devices or (cpu_of(name),)))
        return node.id

    async def report(self, node_id: str, session: str = "s-1", **fields: object) -> bool:
        """Take a report; return whether its session is known."""
        values = {"report_id": new_id("rep"), "sent_at": NOON, "session": session, **fields}
        return (await take_report(self.pool, node_id, Report.model_validate(values))).session_known

    async def say(self, placement: Placement, state: PlacementState, reason: str | None = None) -> None:
        """Report one placement."""
        seen = PlacementReport(placement_id=placement.id, state=state, reason=reason, port=30001)
        await self.report(placement.node_id, placements=[seen])

    async def want(self, name: str = "demo", **fields: object) -> str:
        """Want a workload; return its id."""
        spec = SpecFile.model_validate({"name": name, "command": ["serve"], **fields})
        async with self.pool.change() as change:
            workload, _, _ = await deploy(change, spec, self.pool.catalog)
        await self.reconciler.settle()
        return workload.id

    async def live(self) -> list[Placement]:
        """Return the live placements, newest first."""
        return list((await self.pool.snapshot()).live)

    async def workload(self, workload_id: str) -> Workload:
        """Return a workload."""
        return (await self.pool.snapshot()).workloads[workload_id]

    async def node(self, node_id: str) -> Node:
        """Return a node."""
        return (await self.pool.snapshot()).nodes[node_id]

    async def kinds(self) -> list[str]:
        """Return the kinds of all events."""
        async with self.pool.store.read() as reader:
            return [event.kind for event in await reader.events(limit=1000)]
