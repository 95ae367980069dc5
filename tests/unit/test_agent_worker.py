"""The worker: orders are kept before they are carried out, and an end is told until control has heard it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_process import start_order
from fake_runtime import FakeRuntime
from gpupool.agent.inventory import Inventory
from gpupool.agent.journal import Journal
from gpupool.agent.worker import Worker
from gpupool.contracts.agent_link import Command, DeviceReport, PlacementReport
from gpupool.core.errors import EnvironmentProblemError
from gpupool.fleet.devices import DeviceKind
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.ports.runtime import Instance, InstanceState, LaunchOrder
from polling import eventually

GPU = DeviceReport(id="GPU-a", kind=DeviceKind.GPU, name="card", index=3, memory_mib=1000)
STAND_IN = DeviceReport(
    id="stand-in", kind=DeviceKind.GPU, name="card", index=0, memory_mib=1000, stand_in=True
)
CPU = DeviceReport(id="cpu-1", kind=DeviceKind.CPU, name="cpu", index=0, memory_mib=1000)


class Desk:
    """A worker with everything around it, able to die and come back."""

    def __init__(self, folder: Path, runtime: FakeRuntime | None = None) -> None:
        self.path = folder / "journal.json"
        self.runtime = runtime or FakeRuntime()
        self.worker = self.reborn()
        self.seq = 0

    def reborn(self) -> Worker:
        """Make the worker anew from what is on disk."""
        self.worker = Worker(self.runtime, Journal.load(self.path), Inventory((GPU, STAND_IN, CPU)))
        return self.worker

    async def order(self, kind: str, payload: dict[str, Any]) -> Command:
        """Let the worker handle the next command."""
        self.seq += 1
        command = Command.model_validate({"seq": self.seq, "kind": kind, "payload": payload})
        await self.worker.handle(command)
        return command

    async def seen(self) -> dict[str, PlacementReport]:
        """Return the reports by placement id."""
        return {item.placement_id: item for item in await self.worker.placements()}

    async def states(self) -> dict[str, str]:
        """Return the states by placement id."""
        return {name: item.state.value for name, item in (await self.seen()).items()}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_a_start_is_on_disk_before_it_is_carried_out(tmp_path: Path) -> None:
    class Watching(FakeRuntime):
        async def launch(self, order: LaunchOrder) -> Instance:
            kept = Journal.load(tmp_path / "journal.json")
            assert (kept.last_seq, list(kept.wanted)) == (1, ["pl-a"])
            return await super().launch(order)

    desk = Desk(tmp_path, Watching())
    await desk.order("start", start_order("pl-a"))
    assert list(desk.runtime.orders) == ["pl-a"]
    assert desk.worker.last_seq == 1


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (InstanceState.STARTING, PlacementState.STARTING),
        (InstanceState.RUNNING, PlacementState.VERIFYING),
        (InstanceState.HEALTHY, PlacementState.ACTIVE),
        (InstanceState.STOPPING, PlacementState.DRAINING),
        (InstanceState.EXITED, PlacementState.FAILED),
    ],
)
async def test_an_instance_is_told_in_the_fleet_s_words(
    desk: Desk, state: InstanceState, told: PlacementState
) -> None:
    await desk.order("start", start_order("pl-a"))
    desk.runtime.show("pl-a", state, reason="exit: code 1" if state is InstanceState.EXITED else None)
    assert (await desk.seen())["pl-a"].state is told


async def test_the_same_command_twice_is_carried_out_once(desk: Desk) -> None:
    command = await desk.order("start", start_order("pl-a"))
    desk.runtime.known.clear()
    await desk.worker.handle(command)
    assert desk.runtime.known == {}


async def test_a_start_for_a_placement_that_is_here_changes_nothing(desk: Desk) -> None:
    await desk.order("start", start_order("pl-a"))
    await desk.order("start", start_order("pl-a", command=("other",)))
    assert desk.runtime.orders["pl-a"].command[0] == "python"
    assert desk.worker.last_seq == 2


async def test_a_stop_ends_it_with_the_ordered_grace(desk: Desk) -> None:
    await desk.order("start", start_order("pl-a"))
    await desk.order("stop", {"placement_id": "pl-a", "grace_seconds": 3})
    await eventually(lambda: desk.runtime.stops)
    assert desk.runtime.stops == [("pl-a", 3.0)]
    assert await desk.states() == {"pl-a": "ended"}


async def test_one_that_fails_while_it_is_stopped_has_ended(desk: Desk) -> None:
    await desk.order("start", start_order("pl-a"))
    await desk.order("stop", {"placement_id": "pl-a"})
    desk.runtime.show("pl-a", InstanceState.EXITED, reason="signal: SIGKILL")
    assert await desk.states() == {"pl-a": "ended"}


async def test_a_stop_for_an_unknown_placement_is_answered_with_its_end(desk: Desk) -> None:
    await desk.order("stop", {"placement_id": "pl-x"})
    assert await desk.states() == {"pl-x": "ended"}
    await desk.worker.told(await desk.worker.placements())
    assert await desk.states() == {}


async def test_an_end_is_told_until_control_has_heard_it(desk: Desk) -> None:
    await desk.order("start", start_order("pl-a"))
    desk.runtime.show("pl-a", InstanceState.EXITED, reason="exit: code 1 after 1.0 s")
    for _ in range(2):
        assert await desk.states() == {"pl-a": "failed"}
    await desk.worker.told(await desk.worker.placements())
    assert await desk.states() == {}
    assert desk.runtime.forgotten == ["pl-a"]
    assert Journal.load(desk.path).wanted == {}


async def test_news_that_came_after_the_report_is_not_forgotten_with_it(desk: Desk) -> None:
    await desk.order("start", start_order("pl-a"))
    sent = await desk.worker.placements()
    desk.runtime.show("pl-a", InstanceState.EXITED, reason="exit: code 1")
    await desk.worker.told(sent)
    assert await desk.states() == {"pl-a": "failed"}


async def test_after_a_crash_between_keeping_and_launching_it_is_launched(desk: Desk) -> None:
    await desk.order("start", start_order("pl-a"))
    await desk.order("start", start_order("pl-b"))
    await desk.order("stop", {"placement_id": "pl-b", "grace_seconds": 1})
    desk.runtime = FakeRuntime()
    await desk.reborn().resume()
    assert list(desk.runtime.orders) == ["pl-a"]
    assert await desk.states() == {"pl-a": "verifying", "pl-b": "ended"}
    assert desk.worker.last_seq == 3


async def test_a_stop_that_a_crash_interrupted_goes_on(desk: Desk) -> None:
    await desk.order("start", start_order("pl-a"))
    await desk.order("stop", {"placement_id": "pl-a", "grace_seconds": 7})
    desk.runtime = FakeRuntime()
    desk.runtime.show("pl-a", InstanceState.HEALTHY)
    await desk.reborn().resume()
    await eventually(lambda: desk.runtime.stops)
    assert desk.runtime.stops == [("pl-a", 7.0)]


async def test_an_instance_the_journal_does_not_know_is_told_all_the_same(desk: Desk) -> None:
    desk.runtime.show("pl-old", InstanceState.HEALTHY)
    await desk.worker.resume()
    assert await desk.states() == {"pl-old": "active"}


async def test_gpus_are_passed_on_and_stand_ins_are_not(desk: Desk) -> None:
    await desk.order("start", start_order("pl-a", device_ids=["GPU-a"]))
    await desk.order("start", start_order("pl-b", device_ids=["stand-in"]))
    first, second = desk.runtime.orders["pl-a"], desk.runtime.orders["pl-b"]
    assert (first.gpu_indices, first.gpu_uuids) == ((3,), ("GPU-a",))
    assert (second.gpu_indices, second.gpu_uuids) == ((), ())


async def test_a_device_that_is_not_here_is_refused(desk: Desk) -> None:
    for name in ("GPU-b", "cpu-1"):
        await desk.order("start", start_order(f"pl-{name}", device_ids=[name]))
    seen = await desk.seen()
    assert seen["pl-GPU-b"].reason == "launch: the device GPU-b is not on this node"
    assert {item.state for item in seen.values()} == {PlacementState.FAILED}
    await desk.worker.told(list(seen.values()))
    assert await desk.states() == {}


async def test_an_order_that_is_not_understood_is_answered_and_acknowledged(desk: Desk) -> None:
    await desk.order("start", {"placement_id": "pl-a"})
    await desk.order("stop", {"nonsense": 1})
    assert await desk.states() == {"pl-a": "failed"}
    assert desk.worker.last_seq == 2


async def test_a_journal_that_cannot_be_written_acknowledges_nothing(desk: Desk) -> None:
    desk.path.mkdir()
    (desk.path / "in the way").touch()
    with pytest.raises(EnvironmentProblemError):
        await desk.order("start", start_order("pl-a"))
    assert desk.runtime.orders == {}
    assert desk.worker.last_seq == 0


async def test_another_pool_s_placements_end(desk: Desk) -> None:
    await desk.worker.identified("node-1")
    await desk.order("start", start_order("pl-a"))
    await desk.worker.identified("node-1")
    assert await desk.states() == {"pl-a": "verifying"}
    await desk.worker.identified("node-2")
    assert await desk.states() == {}
    kept = Journal.load(desk.path)
    assert (kept.node_id, kept.last_seq, kept.wanted) == ("node-2", 0, {})


async def test_leaving_ends_everything_with_the_smaller_grace_and_takes_nothing_new(desk: Desk) -> None:
    await desk.order("start", start_order("pl-a", grace_seconds=2))
    await desk.order("start", start_order("pl-b", grace_seconds=60))
    await desk.worker.leave(10.0, asyncio.Event())
    await desk.order("start", start_order("pl-c"))
    assert sorted(desk.runtime.stops) == [("pl-a", 2.0), ("pl-b", 10.0)]
    assert await desk.states() == {"pl-a": "ended", "pl-b": "ended"}
    assert desk.worker.last_seq == 2


async def test_hurry_cuts_the_grace_short(tmp_path: Path) -> None:
    class Patient(FakeRuntime):
        def __init__(self) -> None:
            super().__init__()
            self.ended = asyncio.Event()

        async def stop(self, placement_id: str, grace_seconds: float | None = None) -> None:
            if grace_seconds == 0:
                self.ended.set()
            await self.ended.wait()
            await super().stop(placement_id, grace_seconds)

    desk, hurry = Desk(tmp_path, Patient()), asyncio.Event()
    await desk.order("start", start_order("pl-a"))
    leaving = asyncio.create_task(desk.worker.leave(600.0, hurry))
    hurry.set()
    await asyncio.wait_for(leaving, 10)
    assert ("pl-a", 0.0) in desk.runtime.stops


async def test_news_wakes_for_changes_and_for_commands(desk: Desk) -> None:
    waiting = asyncio.create_task(desk.worker.news(600))
    desk.runtime.show("pl-a", InstanceState.HEALTHY)
    await asyncio.wait_for(waiting, 10)
    await desk.worker.placements()
    waiting = asyncio.create_task(desk.worker.news(600))
    await desk.order("stop", {"placement_id": "pl-x"})
    await asyncio.wait_for(waiting, 10)


async def test_a_crash_while_an_end_is_forgotten_never_runs_it_again(tmp_path: Path) -> None:
    class Dying(FakeRuntime):
        async def forget(self, placement_id: str) -> None:
            raise EnvironmentProblemError

    desk = Desk(tmp_path, Dying())
    await desk.order("start", start_order("pl-a"))
    desk.runtime.show("pl-a", InstanceState.EXITED, reason="exit: code 1")
    with pytest.raises(EnvironmentProblemError):
        await desk.worker.told(await desk.worker.placements())
    desk.runtime.orders.clear()
    await desk.reborn().resume()
    assert desk.runtime.orders == {}
    assert await desk.states() == {"pl-a": "failed"}


async def test_a_command_that_comes_twice_at_once_is_carried_out_once(desk: Desk) -> None:
    command = Command.model_validate({"seq": 1, "kind": "start", "payload": start_order("pl-a")})
    launches: list[str] = []
    launch = desk.runtime.launch

    async def counting(order: LaunchOrder) -> Instance:
        launches.append(order.placement_id)
        return await launch(order)

    desk.runtime.launch = counting  # type: ignore[method-assign]
    await asyncio.gather(desk.worker.handle(command), desk.worker.handle(command))
    assert launches == ["pl-a"]
