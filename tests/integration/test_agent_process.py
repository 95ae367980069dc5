"""The agent as a real process against a scripted control: orders in, reports out, and its own end."""

import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from agent_process import AgentProcess, start_order
from gpupool.core.processes import identify
from gpupool.core.records import ProcessRecord
from gpupool.fleet.devices import DeviceKind
from gpupool.fleet.placements import PlacementState
from gpupool.runtimes.process.cleanup import end_recorded
from gpupool.runtimes.process.table import read_entry, resident_mib
from polling import eventually
from scripted_control import ScriptedControl
from workloads import bare


@pytest_asyncio.fixture
async def control() -> AsyncIterator[ScriptedControl]:
    """A control of this test's own."""
    async with ScriptedControl() as made:
        yield made


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[AgentProcess]:
    """An agent not started yet; whatever it leaves behind is ended."""
    made = AgentProcess(tmp_path / "home")
    yield made
    await made.kill()
    end_recorded(made.runs)


async def active(control: ScriptedControl, placement_id: str) -> int:
    """Return the port of a placement once it is active."""
    await eventually(lambda: control.state(placement_id) is PlacementState.ACTIVE, what="active")
    port = control.placements[placement_id].port
    assert port is not None
    return port


async def test_it_joins_and_tells_everything_first(control: ScriptedControl, agent: AgentProcess) -> None:
    agent.start(control)
    await eventually(lambda: control.streams)
    assert control.joins[0].name == "tested"
    assert control.joins[0].address == "127.0.0.1"
    first = control.reports[0]
    assert first.complete
    assert first.placements == []
    assert first.devices is not None
    assert [device.kind for device in first.devices if device.kind is DeviceKind.CPU] == [DeviceKind.CPU]
    record = ProcessRecord.read(agent.home / "run" / "agent.json")
    assert record is not None
    assert record.process.pid == agent.pid


async def test_an_order_becomes_an_active_placement_and_a_stop_ends_it(
    control: ScriptedControl, agent: AgentProcess
) -> None:
    agent.start(control)
    control.order("start", start_order("pl-a"))
    await active(control, "pl-a")
    await eventually(lambda: not control.commands, what="acknowledged")
    control.order("stop", {"placement_id": "pl-a", "grace_seconds": 5})
    await eventually(lambda: control.state("pl-a") is PlacementState.ENDED)
    await eventually(lambda: not (agent.runs / "pl-a" / "record.json").exists(), what="forgotten")


async def test_a_failure_is_told_with_its_reason(control: ScriptedControl, agent: AgentProcess) -> None:
    agent.start(control)
    control.order("start", start_order("pl-a", bare("raise SystemExit('no weights')")))
    control.order("start", start_order("pl-b", device_ids=["GPU-not-here"]))
    control.order("start", {"placement_id": "pl-c"})
    await eventually(lambda: all(control.state(f"pl-{name}") is PlacementState.FAILED for name in "abc"))
    reasons = {name: item.reason or "" for name, item in control.placements.items()}
    assert re.fullmatch(r"exit: code 1 after [\d.]+ s: no weights", reasons["pl-a"])
    assert reasons["pl-b"] == "launch: the device GPU-not-here is not on this node"
    assert reasons["pl-c"].startswith("launch: the node does not understand the order: ")


async def test_logs_are_sent_when_asked_for(control: ScriptedControl, agent: AgentProcess) -> None:
    agent.start(control)
    control.order("start", start_order("pl-a", bare("print('hello')")))
    await eventually(lambda: control.state("pl-a") is PlacementState.FAILED)
    for request_id, placement_id in (("req-1", "pl-a"), ("req-2", "pl-unknown")):
        payload = {"request_id": request_id, "placement_id": placement_id, "lines": 5}
        control.order("logs", payload, kept=False)
    await eventually(lambda: len(control.logs) == 2)
    assert control.logs["req-1"] == "hello\n"
    assert control.logs["req-2"] == "There is no output of pl-unknown on this node.\n"


async def test_an_orderly_stop_ends_placements_and_says_goodbye(
    control: ScriptedControl, agent: AgentProcess
) -> None:
    agent.start(control)
    control.order("start", start_order("pl-a"))
    await active(control, "pl-a")
    agent.send(signal.SIGTERM)
    assert await agent.ended() == 0
    last = control.reports[-1]
    assert last.leaving
    assert last.complete
    assert [(item.placement_id, item.state) for item in last.placements] == [("pl-a", PlacementState.ENDED)]
    assert end_recorded(agent.runs) == []
    assert not (agent.home / "run" / "agent.json").exists()


async def test_a_second_signal_ends_what_ignores_the_first(
    control: ScriptedControl, agent: AgentProcess
) -> None:
    stubborn = bare(
        """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        while True: signal.pause()
        """
    )
    agent.start(control, GPUPOOL_STOP_GRACE_SECONDS="600")
    control.order("start", start_order("pl-a", stubborn, grace_seconds=600))
    output = agent.runs / "pl-a" / "output.log"
    await eventually(lambda: output.exists() and "deaf" in output.read_text())
    agent.send(signal.SIGTERM)
    await eventually(lambda: control.state("pl-a") is PlacementState.DRAINING)
    agent.send(signal.SIGTERM)
    assert await agent.ended() == 0
    assert end_recorded(agent.runs) == []


async def test_a_killed_agent_leaves_its_placements_running_and_the_next_one_adopts_them(
    control: ScriptedControl, agent: AgentProcess
) -> None:
    agent.start(control)
    control.order("start", start_order("pl-a"))
    port = await active(control, "pl-a")
    await eventually(lambda: not control.commands)
    await agent.kill()
    told = len(control.reports)
    agent.start(control)
    await eventually(lambda: len(control.reports) > told)
    first = control.reports[told]
    assert first.complete
    assert [item.placement_id for item in first.placements] == ["pl-a"]
    assert await active(control, "pl-a") == port
    assert control.placements["pl-a"].restarts == 0
    control.order("stop", {"placement_id": "pl-a", "grace_seconds": 5})
    await eventually(lambda: control.state("pl-a") is PlacementState.ENDED)


async def test_a_placement_that_died_with_no_agent_there_is_told(
    control: ScriptedControl, agent: AgentProcess
) -> None:
    agent.start(control)
    control.order("start", start_order("pl-a"))
    await active(control, "pl-a")
    await eventually(lambda: not control.commands)
    await agent.kill()
    (ended,) = end_recorded(agent.runs)
    pid = int(ended.rpartition(" ")[2])
    assert ended.startswith("tested (pl-a), pid ")
    assert identify(pid) is None
    agent.start(control)
    await eventually(lambda: control.state("pl-a") is PlacementState.ENDED)
    assert control.placements["pl-a"].reason == "stopped"


async def test_two_agents_on_one_state_folder_refuse(control: ScriptedControl, agent: AgentProcess) -> None:
    agent.start(control)
    await eventually(lambda: control.streams)
    second = AgentProcess(agent.home)
    second.start(control)
    assert await second.ended() == 5
    assert "An agent already runs on" in second.log.read_text()


async def test_settings_that_cannot_be_met_end_with_a_clear_word(
    control: ScriptedControl, agent: AgentProcess
) -> None:
    agent.start(control, "--stand-in-gpus", "1", "--stand-in-model", "no_such_card")
    assert await agent.ended() == 2
    assert "no_such_card" in agent.log.read_text()
    agent.start(control, "--control", "ftp://nowhere")
    assert await agent.ended() == 2
    assert "control_url" in agent.log.read_text()
    agent.start(control, "--address", "192.0.2.1")
    assert await agent.ended() == 2
    assert "Workloads cannot listen on 192.0.2.1" in agent.log.read_text()


async def test_a_node_may_listen_elsewhere_than_it_is_reached(
    control: ScriptedControl, agent: AgentProcess
) -> None:
    agent.start(control, "--address", "192.0.2.1", "--listen", "127.0.0.1")
    control.order("start", start_order("pl-a"))
    await active(control, "pl-a")
    assert control.joins[0].address == "192.0.2.1"


async def test_a_stand_in_gpu_is_labelled(control: ScriptedControl, agent: AgentProcess) -> None:
    agent.start(control, "--stand-in-gpus", "2", "--stand-in-model", "4090")
    await eventually(lambda: control.reports)
    gpus = [device for device in control.reports[0].devices or [] if device.kind is DeviceKind.GPU]
    assert [gpu.stand_in for gpu in gpus] == [True, True]
    control.order("start", start_order("pl-a", device_ids=[gpus[0].id]))
    await active(control, "pl-a")


async def test_it_stays_small(control: ScriptedControl, agent: AgentProcess) -> None:
    agent.start(control)
    await eventually(lambda: control.streams)
    entry = read_entry(agent.pid)
    assert entry is not None
    assert resident_mib([entry]) < 80
