"""A node as the model tests see it: what its agent keeps, runs and tells, with no process and no network in it.

It obeys the rules of the real agent: orders are journalled before they are acknowledged, a session begins with a
complete report, one report is under way at a time, and one that got no answer ends the session. What the real one
leaves to chance (when a process is healthy, fails or is gone) is decided by the test.
"""

from dataclasses import dataclass, field

from fleet_samples import NOON
from gpupool.contracts.agent_link import DeviceReport, PlacementReport, Report, StartOrder
from gpupool.core.ids import new_id
from gpupool.fleet.placements import LIVE_STATES, PlacementState
from gpupool.fleet.ports.store import QueuedCommand

P = PlacementState
_NEXT = {P.STARTING: P.VERIFYING, P.VERIFYING: P.ACTIVE, P.ACTIVE: P.ACTIVE}


@dataclass
class Instance:
    """A process of the node, or what is left of it."""

    order: StartOrder
    state: PlacementState = P.STARTING
    reason: str | None = None
    revived: bool = False
    """Launched from the journal after a reboot: control may have given it up meanwhile."""

    @property
    def running(self) -> bool:
        """Whether there is a process that uses its devices."""
        return self.state in LIVE_STATES


@dataclass
class Wanted:
    """An entry of the journal."""

    order: StartOrder
    stop: bool = False


@dataclass
class ModelAgent:
    """One node and its agent."""

    name: str
    devices: list[DeviceReport]
    node_id: str = ""
    session: str | None = None
    boots: int = 0
    sessions: int = 0
    leaving: bool = False
    hidden: set[str] = field(default_factory=set)
    """Devices that the next inventory does not show."""
    last_seq: int = 0
    journal: dict[str, Wanted] = field(default_factory=dict)
    instances: dict[str, Instance] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    told: dict[str, PlacementReport] = field(default_factory=dict)
    acknowledged: int = -1

    def connect(self) -> Report:
        """Begin a session and return its complete report."""
        self.sessions += 1
        self.session = f"s-{self.sessions:06d}"
        self.told, self.acknowledged = {}, -1
        return self.report(complete=True)

    def report(self, *, complete: bool = False, leaving: bool = False) -> Report:
        """Return everything there is to say, or what is news."""
        seen = list(self._placements().values())
        if not complete:
            seen = [item for item in seen if self.told.get(item.placement_id) != item]
        shown = [device for device in self.devices if device.id not in self.hidden]
        return Report(
            report_id=new_id("rep"),
            sent_at=NOON,
            session=self.session or "",
            boot_id=f"{self.name}-{self.boots}",
            complete=complete,
            devices=shown if complete else None,
            placements=seen,
            acknowledged=self.last_seq if self.last_seq != self.acknowledged else None,
            leaving=leaving,
        )

    def taken(self, report: Report) -> None:
        """Note that control has taken a report in: what has ended may be forgotten."""
        if report.acknowledged is not None:
            self.acknowledged = report.acknowledged
        for item in report.placements:
            self.told[item.placement_id] = item
            if item.state not in LIVE_STATES:
                self.told.pop(item.placement_id)
                self.journal.pop(item.placement_id, None)
                self.instances.pop(item.placement_id, None)
                self.gone.discard(item.placement_id)

    def handle(self, command: QueuedCommand) -> None:
        """Carry out a command, each only once."""
        if self.leaving or command.seq <= self.last_seq:
            return
        self.last_seq = command.seq
        name = str(command.payload["placement_id"])
        if command.kind == "start":
            wanted = self.journal.setdefault(name, Wanted(StartOrder.model_validate(command.payload)))
            if not wanted.stop:
                self._launch(name, wanted.order)
        elif name in self.journal:
            self.journal[name].stop = True
        elif name not in self.instances:
            self.gone.add(name)

    def go_on(self, name: str) -> None:
        """Let an instance come one step nearer to where it is going: healthy, or gone when it is to stop."""
        instance = self.instances[name]
        if instance.running and self._stopping(name):
            instance.state, instance.reason = P.ENDED, "stopped"
        elif instance.running:
            instance.state = _NEXT[instance.state]

    def falter(self, name: str, *, dies: bool) -> None:
        """Let an instance lose its health, or its life."""
        instance = self.instances[name]
        if instance.running and dies:
            instance.state = P.ENDED if self._stopping(name) else P.FAILED
            instance.reason = "exit 1"
        elif instance.state is P.ACTIVE:
            instance.state = P.VERIFYING

    def restart(self, *, reboot: bool = False, lost: bool = False) -> None:
        """Start the agent anew; a ``reboot`` has ended every process, and a ``lost`` disk the journal too."""
        self.session, self.leaving = None, False
        self.gone.clear()
        if reboot or lost:
            self.instances.clear()
            self.boots += 1
        if lost:
            self.journal.clear()
            self.last_seq = 0
        for name, wanted in self.journal.items():
            if not wanted.stop and name not in self.instances:
                self._launch(name, wanted.order, revived=True)

    def farewell(self) -> Report:
        """End everything and return the last report."""
        self.leaving = True
        for instance in self.instances.values():
            if instance.running:
                instance.state, instance.reason = P.ENDED, "stopped"
        return self.report(complete=True, leaving=True)

    def _launch(self, name: str, order: StartOrder, *, revived: bool = False) -> None:
        """Launch an instance once; without its devices it fails at once."""
        here = {device.id for device in self.devices}
        able = here.issuperset(order.device_ids)
        fresh = (
            Instance(order, revived=revived) if able else Instance(order, P.FAILED, "launch: no such device")
        )
        self.instances.setdefault(name, fresh)

    def _stopping(self, name: str) -> bool:
        return self.leaving or (name in self.journal and self.journal[name].stop)

    def _placements(self) -> dict[str, PlacementReport]:
        seen = {name: self._seen(name, instance) for name, instance in self.instances.items()}
        for name, wanted in self.journal.items():
            if name not in seen:
                state = P.ENDED if wanted.stop else P.STARTING
                seen[name] = PlacementReport(placement_id=name, state=state)
        for name in self.gone - seen.keys():
            seen[name] = PlacementReport(placement_id=name, state=P.ENDED)
        return seen

    def _seen(self, name: str, instance: Instance) -> PlacementReport:
        state = P.DRAINING if instance.running and self._stopping(name) else instance.state
        return PlacementReport(placement_id=name, state=state, reason=instance.reason, port=30_001)
