"""The alert desk over the real store, with agents that say what the test tells them and a clock that it turns."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from control_stage import cpu_of, gpu_of
from fleet_samples import NOON, a_silence, an_alarm, later, new_database
from gpupool.contracts.agent_link import DeviceReport, JoinRequest, PlacementReport, Report
from gpupool.contracts.spec import SpecFile
from gpupool.control.alerts.desk import AlertDesk, Desk
from gpupool.control.alerts.metrics import DeskMetrics
from gpupool.control.alerts.rules import Disk
from gpupool.control.joining import forget_sessions, join
from gpupool.control.pool import Pool
from gpupool.control.reconciling import Reconciler
from gpupool.control.reporting import take_report
from gpupool.control.wanting import deploy
from gpupool.core.clock import FakeClock
from gpupool.core.errors import BusyError, NotFoundError, StorageError
from gpupool.core.ids import new_id
from gpupool.fleet.alarms import Severity
from gpupool.fleet.placements import PlacementState
from gpupool.notify.port import NotDeliveredError, Note
from gpupool.store.open import open_store

STEP = 5.0
"""Seconds between two looks; fewer of them than in real life, to save time."""


class Phone:
    """Takes messages, or not."""

    name = "phone"

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.broken = False
        self.hold: asyncio.Event | None = None

    async def send(self, note: Note) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.broken:
            raise NotDeliveredError("phone: no network")
        self.notes.append(note)

    @property
    def titles(self) -> list[str]:
        return [note.title.partition(": ")[2] for note in self.notes]


class World:
    """One run of control: pool, reconciler and desk."""

    def __init__(self, pool: Pool, clock: FakeClock, **settings: Any) -> None:
        self.pool, self.clock, self.phone = pool, clock, Phone()
        self.reconciler = Reconciler(pool)
        given: dict[str, Any] = {
            "targets": [("phone", self.phone, Severity.WARNING)],
            "pauses": (),
            "distance_seconds": 0.0,
        }
        self.desk = AlertDesk(pool, Desk(**{**given, **settings}))
        self.nodes: dict[str, str] = {}
        self.session = "s-1"

    async def join(self, name: str, *devices: DeviceReport) -> str:
        key = f"{name:A<43}"[:43].replace("-", "+") + "="
        request = JoinRequest(name=name, public_key=key, address="h")
        async with self.pool.change() as change:
            node = await join(change, request)
        self.nodes[name] = node.id
        await self.report(name, complete=True, devices=list(devices or (cpu_of(name),)))
        return node.id

    async def report(self, name: str, **fields: Any) -> None:
        values = {"report_id": new_id("rep"), "sent_at": NOON, "session": self.session, **fields}
        await take_report(self.pool, self.nodes[name], Report.model_validate(values))

    async def deploy(self, name: str, **fields: Any) -> str:
        spec = SpecFile.model_validate({"name": name, "command": ["serve"], **fields})
        async with self.pool.change() as change:
            workload, _, _ = await deploy(change, spec, self.pool.catalog)
        await self.reconciler.settle()
        return workload.id

    async def say(self, state: PlacementState, reason: str | None = None) -> None:
        """Report the newest live placement."""
        placement = (await self.pool.snapshot()).live[0]
        name = next(name for name, node in self.nodes.items() if node == placement.node_id)
        seen = PlacementReport(placement_id=placement.id, state=state, reason=reason, port=30001)
        await self.report(name, placements=[seen])

    async def pass_time(self, seconds: float, speaking: Sequence[str] = ()) -> None:
        """Let time pass in steps of the desk's looks, while some nodes speak."""
        for _ in range(round(seconds / STEP)):
            self.clock.advance(STEP)
            for name in speaking:
                await self.report(name)
            await self.reconciler.settle()
            await self.desk.look()
            await self.told()

    async def told(self) -> None:
        """Wait until nothing is under way."""
        while self.desk._tellings and self.phone.hold is None:
            await asyncio.wait(self.desk._tellings)

    async def kinds(self) -> list[str]:
        async with self.pool.store.read() as reader:
            return [event.kind for event in await reader.events(limit=1000)]


@asynccontextmanager
async def world(folder: Path, clock: FakeClock, **settings: Any) -> AsyncIterator[World]:
    """Run control on the state in ``folder``."""
    database = folder / "pool.db"
    if not database.exists():
        new_database(folder)
    store = await open_store(database)
    pool = Pool(store, clock)
    await forget_sessions(pool)
    made = World(pool, clock, **settings)
    couriers = [asyncio.create_task(courier.run()) for courier, _ in made.desk.couriers]
    try:
        yield made
    finally:
        for task in couriers:
            task.cancel()
        await asyncio.gather(*couriers, return_exceptions=True)
        await store.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


async def test_nodes_that_go_silent_together_are_one_message_and_so_is_their_return(
    tmp_path: Path, clock: FakeClock
) -> None:
    names = [f"gpu-{n}" for n in range(5)]
    async with world(tmp_path, clock) as here:
        for name in names:
            await here.join(name)
        await here.pass_time(60, speaking=names)
        assert here.phone.titles == []
        await here.pass_time(120)
        assert here.phone.titles == ["alarms: 5 new"]
        assert "node silent (5): gpu-0, gpu-1, gpu-2, gpu-3, gpu-4" in here.phone.notes[0].text
        await here.pass_time(120, speaking=names)
        assert here.phone.titles[1:] == ["alarms: 5 over"]
        assert list(here.desk.alarms) == []
        kinds = await here.kinds()
        assert kinds.count("alarm.raised") == kinds.count("alarm.over") == 5


async def test_an_agent_that_says_good_bye_is_a_stopped_one_also_after_a_restart_of_control(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with world(tmp_path, clock) as here:
        await here.join("gpu-1")
        await here.pass_time(60, speaking=["gpu-1"])
        await here.report("gpu-1", complete=True, devices=[cpu_of("gpu-1")], leaving=True)
        await here.pass_time(60)
        assert here.phone.titles == ["agent stopped: gpu-1"]
    async with world(tmp_path, clock) as here:
        await here.pass_time(300)
        assert here.phone.titles == []
        assert [alarm.rule for alarm in here.desk.alarms] == ["agent_stopped"]


async def test_a_restart_of_control_tells_nothing_twice_and_loses_no_end(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with world(tmp_path, clock) as here:
        await here.join("gpu-1")
        await here.join("gpu-2")
        await here.pass_time(60, speaking=["gpu-1", "gpu-2"])
        await here.pass_time(90, speaking=["gpu-2"])
        assert here.phone.titles == ["node silent: gpu-1"]
        nodes = here.nodes
    async with world(tmp_path, clock) as here:
        here.nodes, here.session = nodes, "s-2"
        # Every node is unreachable to a control that has just started, and none of that is told.
        await here.pass_time(30)
        for name in nodes:
            await here.report(name, complete=True, devices=[cpu_of(name)])
        await here.pass_time(60, speaking=list(nodes))
        assert here.phone.titles == ["over: node silent: gpu-1"]


async def test_what_nobody_took_is_told_when_somebody_takes_it(tmp_path: Path, clock: FakeClock) -> None:
    async with world(tmp_path, clock) as here:
        here.phone.broken = True
        await here.join("gpu-1")
        await here.pass_time(60, speaking=["gpu-1"])
        await here.pass_time(90)
        assert here.phone.notes == []
        assert "alert.not_delivered" in await here.kinds()
        assert here.desk.tries["phone", "not_taken"] > 0
        here.phone.broken = False
        await here.pass_time(120)
        assert here.phone.titles == ["node silent: gpu-1"]
        assert "earlier messages did not get through" in here.phone.notes[0].text


async def test_an_end_that_comes_before_the_beginning_could_be_told_says_so(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with world(tmp_path, clock) as here:
        here.phone.broken = True
        await here.join("gpu-1")
        await here.pass_time(60, speaking=["gpu-1"])
        await here.pass_time(70)
        await here.pass_time(60, speaking=["gpu-1"])
        here.phone.broken = False
        await here.pass_time(300, speaking=["gpu-1"])
        assert here.phone.titles == ["over: node silent: gpu-1"]
        assert "its beginning could not be told" in here.phone.notes[0].text


async def test_a_target_that_hangs_holds_up_no_other(tmp_path: Path, clock: FakeClock) -> None:
    stuck, pager = Phone(), Phone()
    stuck.hold = asyncio.Event()
    targets = [("stuck", stuck, Severity.WARNING), ("pager", pager, Severity.WARNING)]
    async with world(tmp_path, clock, targets=targets) as here:
        here.phone.hold = stuck.hold
        await here.join("gpu-1")
        await here.pass_time(60, speaking=["gpu-1"])
        await here.pass_time(70)
        for speaking in (["gpu-1"], [], ["gpu-1"]):
            for _ in range(24):
                await here.pass_time(STEP, speaking=speaking)
                await asyncio.sleep(0)
        assert [title.split(":")[0] for title in pager.titles] == ["node silent", "over"] * 2
        assert stuck.notes == []
        stuck.hold.set()


async def test_a_target_hears_only_what_is_bad_enough(tmp_path: Path, clock: FakeClock) -> None:
    pager = Phone()
    async with world(tmp_path, clock, targets=[("pager", pager, Severity.CRITICAL)]) as here:
        await here.join("gpu-1")
        await here.pass_time(60, speaking=["gpu-1"])
        await here.report("gpu-1", complete=True, devices=[cpu_of("gpu-1")], leaving=True)
        await here.pass_time(60)
        (alarm,) = here.desk.alarms
        assert alarm.rule == "agent_stopped"
        assert alarm.told_at is not None
        assert pager.notes == []


async def test_a_silence_keeps_quiet_until_it_ends(tmp_path: Path, clock: FakeClock) -> None:
    async with world(tmp_path, clock) as here:
        async with here.pool.change() as change:
            await change.writer.put_silence(a_silence(pattern="node_silent/gpu-*", until=later(300)))
        await here.join("gpu-1")
        await here.pass_time(60, speaking=["gpu-1"])
        await here.pass_time(200)
        assert [alarm.rule for alarm in here.desk.alarms] == ["node_silent"]
        assert here.phone.notes == []
        await here.pass_time(100)
        assert here.phone.titles == ["node silent: gpu-1"]
        async with here.pool.store.read() as reader:
            assert list(await reader.silences()) == []


async def test_what_lasts_is_told_again(tmp_path: Path, clock: FakeClock) -> None:
    async with world(tmp_path, clock, repeat=timedelta(seconds=100)) as here:
        await here.join("gpu-1")
        await here.pass_time(60, speaking=["gpu-1"])
        await here.pass_time(400)
        assert here.phone.titles[:2] == ["node silent: gpu-1", "still: node silent: gpu-1"]
        assert len(here.phone.titles) == 4


async def test_a_lost_gpu_and_its_return(tmp_path: Path, clock: FakeClock) -> None:
    async with world(tmp_path, clock) as here:
        await here.join("gpu-1", cpu_of("gpu-1"), gpu_of("gpu-1"))
        await here.pass_time(60, speaking=["gpu-1"])
        await here.report("gpu-1", complete=True, devices=[cpu_of("gpu-1")])
        await here.pass_time(80, speaking=["gpu-1"])
        assert here.phone.titles == ["GPU lost: gpu-1 GPU 0"]
        await here.report("gpu-1", complete=True, devices=[cpu_of("gpu-1"), gpu_of("gpu-1")])
        await here.pass_time(60, speaking=["gpu-1"])
        assert here.phone.titles[1:] == ["over: GPU lost: gpu-1 GPU 0"]


async def test_a_chute_that_fails_again_and_again_is_told_as_failing_and_as_down(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with world(tmp_path, clock) as here:
        await here.join("gpu-1")
        await here.pass_time(60, speaking=["gpu-1"])
        await here.deploy("chat", memory_mb=64)
        await here.pass_time(120, speaking=["gpu-1"])
        assert here.phone.notes == []
        for _ in range(3):
            await here.say(PlacementState.FAILED, "exit: code 1")
            await here.pass_time(8, speaking=["gpu-1"])
        await here.pass_time(80, speaking=["gpu-1"])
        told = "\n".join(note.text for note in here.phone.notes)
        assert "deployment fails again and again: chat" in told
        assert "[critical] chute down: chat (1 wanted, no instance serves)" in told
        await here.say(PlacementState.ACTIVE)
        await here.pass_time(60, speaking=["gpu-1"])
        assert list(here.desk.alarms) == []
        assert here.phone.titles[-1].startswith(("over", "alarms"))


async def test_a_recompute_server_on_a_silent_node_is_down_and_back(tmp_path: Path, clock: FakeClock) -> None:
    async with world(tmp_path, clock) as here:
        await here.join("gpu-1")
        await here.pass_time(60, speaking=["gpu-1"])
        await here.deploy("farm", kind="recompute", memory_mb=64)
        await here.say(PlacementState.ACTIVE)
        await here.pass_time(60, speaking=["gpu-1"])
        assert here.phone.notes == []
        await here.pass_time(150)
        told = "\n".join(note.text for note in here.phone.notes)
        assert "recompute server down: farm (1 wanted, its node is silent)" in told
        await here.pass_time(60, speaking=["gpu-1"])
        assert "over: recompute server down: farm" in here.phone.notes[-1].text


async def test_too_few_instances_for_long_are_told(tmp_path: Path, clock: FakeClock) -> None:
    async with world(tmp_path, clock) as here:
        await here.join("gpu-1")
        await here.pass_time(60, speaking=["gpu-1"])
        await here.deploy("chat", memory_mb=5000, replicas=2)
        await here.say(PlacementState.ACTIVE)
        await here.pass_time(290, speaking=["gpu-1"])
        assert here.phone.notes == []
        await here.pass_time(60, speaking=["gpu-1"])
        assert here.phone.titles == ["instances missing: chat"]


async def test_a_proxy_that_stops_following_is_told_and_not_forgotten_by_a_restart(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with world(tmp_path, clock) as here:
        for name in ("recompute.farm-1", "openai.once", "no follower's name"):
            here.desk.followers.heard(name)
        await here.pass_time(70)
        here.desk.followers.heard("recompute.farm-1")
        await here.pass_time(80)
        assert here.phone.notes == []
        await here.pass_time(60)
        assert here.phone.titles == ["endpoints feed no longer followed: recompute.farm-1"]
    async with world(tmp_path, clock) as here:
        await here.pass_time(120)
        assert here.phone.notes == []
        here.desk.followers.heard("recompute.farm-1")
        await here.pass_time(30)
        assert here.phone.titles == ["over: endpoints feed no longer followed: recompute.farm-1"]


async def test_a_disk_that_fills_up_is_told(tmp_path: Path, clock: FakeClock) -> None:
    room = [Disk(folder="/state", total=100 * 2**30, free=50 * 2**30)]
    async with world(tmp_path, clock, disk=lambda: room[0]) as here:
        await here.pass_time(120)
        assert here.phone.notes == []
        room[0] = dataclasses.replace(room[0], free=4 * 2**30)
        await here.pass_time(120)
        assert here.phone.titles == ["control's disk nearly full: control"]


async def test_trouble_with_the_database_is_told_from_memory_and_written_down_later(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, clock) as here:
        await here.pass_time(60)

        def fail() -> Any:
            raise StorageError("The disk is full.")

        with monkeypatch.context() as broken:
            broken.setattr(here.pool.store, "write", fail)
            with pytest.raises(StorageError):
                await here.join("gpu-1")
            for _ in range(12):
                clock.advance(STEP)
                await here.desk.look()
                await here.told()
            assert here.phone.titles == ["database trouble: database"]
            assert "The disk is full." in here.phone.notes[0].text
            assert "alarm.raised" not in await here.kinds()
            broken.setattr(here.pool.store, "read", fail)
            clock.advance(2)
            await here.desk.look()
        await here.pass_time(80)
        assert here.phone.titles[1:] == ["over: database trouble: database"]
        kinds = await here.kinds()
        assert kinds.count("alarm.raised") == kinds.count("alarm.over") == 1


async def test_a_test_tells_how_each_target_took_it(tmp_path: Path, clock: FakeClock) -> None:
    async with world(tmp_path, clock) as here:
        (done,) = await here.desk.test()
        assert (done.target, done.outcome.value, done.why) == ("phone", "taken", "")
        assert here.phone.notes[0].facts["test"] is True
        here.phone.broken = True
        (done,) = await here.desk.test("phone")
        assert (done.outcome.value, done.why) == ("not_taken", "phone: no network")
        with pytest.raises(NotFoundError, match="nobody"):
            await here.desk.test("nobody")
        here.phone.hold = asyncio.Event()
        running = asyncio.create_task(here.desk.test())
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await here.desk.test()
        here.phone.hold.set()
        await running


async def test_the_metrics_tell_of_alarms_and_of_tries(tmp_path: Path, clock: FakeClock) -> None:
    async with world(tmp_path, clock) as here:
        here.desk.alarms = type(here.desk.alarms)([an_alarm(), an_alarm(subject="node-2", until=NOON)])
        await here.desk.test()
        registry = CollectorRegistry()
        registry.register(DeskMetrics(here.desk))
        told = generate_latest(registry).decode()
    assert 'gpupool_alarms{rule="node_silent",severity="critical"} 1.0' in told
    assert 'gpupool_alert_tries_total{outcome="taken",target="phone"} 1.0' in told
    assert 'gpupool_alert_waiting{target="phone"} 0.0' in told
