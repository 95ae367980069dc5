"""With the agent dead, run records and marks are enough to end everything, and nothing else."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpupool.core.errors import EnvironmentProblemError
from gpupool.core.processes import identify
from gpupool.fleet.ports.runtime import Instance, InstanceState, LaunchOrder
from gpupool.runtimes.process.cleanup import end_recorded
from gpupool.runtimes.process.ending import survivors
from gpupool.runtimes.process.records import Phase, RunFolder, RunRecord
from gpupool.runtimes.process.runtime import ProcessRuntime
from polling import eventually
from workloads import HEALTHY, order, program

FAMILY = program(
    """
    import subprocess
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
    server.serve_forever()
    """
)


async def left_alone(runs: Path, *orders: LaunchOrder) -> None:
    """Launch, wait until all are healthy, and let go, as an agent that dies does."""
    runtime = ProcessRuntime(runs, runs.parent / "cache")
    await runtime.adopt()
    for wanted in orders:
        await runtime.launch(wanted)

    async def healthy() -> Sequence[Instance] | None:
        seen = await runtime.instances()
        return seen if all(item.state is InstanceState.HEALTHY for item in seen) else None

    found = await eventually(healthy)
    assert len(found) == len(orders)
    await runtime.close(stop_instances=False)


async def test_everything_ends_and_the_records_say_so(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    orders = [order(HEALTHY, grace_seconds=0.3), order(FAMILY, grace_seconds=0.3)]
    await left_alone(runs, *orders)
    output = RunFolder.of(runs, orders[1].placement_id).output
    await eventually(lambda: "deaf" in output.read_text())
    lines = end_recorded(runs)
    assert len(lines) == 3
    assert sum(line.startswith("tested (pl-test") for line in lines) == 2
    for wanted in orders:
        assert survivors(runs, wanted.placement_id, None) == []
        record = RunFolder.of(runs, wanted.placement_id).read()
        assert record is not None
        assert (record.phase, record.reason) == (Phase.EXITED, "stopped")
    assert end_recorded(runs) == []


def is_uncollected(pid: int) -> bool:
    """Tell whether a child of ours still has its exit ahead of it, or waits to be collected."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


async def test_children_of_ours_are_collected_when_they_are_ended(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    wanted = order(HEALTHY, grace_seconds=0.3)
    await left_alone(runs, wanted)
    record = RunFolder.of(runs, wanted.placement_id).read()
    assert record is not None
    assert record.process is not None
    assert is_uncollected(record.process.pid)
    end_recorded(runs)
    assert not is_uncollected(record.process.pid)


async def test_an_intent_without_a_pid_is_enough(tmp_path: Path) -> None:
    runs, wanted = tmp_path / "runs", order(HEALTHY)
    await left_alone(runs, wanted)
    folder = RunFolder.of(runs, wanted.placement_id)
    folder.write(RunRecord(order=wanted, host="127.0.0.1"))
    assert len(end_recorded(runs)) == 1
    assert survivors(runs, wanted.placement_id, None) == []


async def test_even_a_lost_record_is_no_escape(tmp_path: Path) -> None:
    runs, wanted = tmp_path / "runs", order(HEALTHY)
    await left_alone(runs, wanted)
    RunFolder.of(runs, wanted.placement_id).record_path.unlink()
    assert len(end_recorded(runs)) == 1


async def test_another_pool_on_this_machine_is_left_alone(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours" / "runs", tmp_path / "theirs" / "runs"
    mine, other = order(HEALTHY), order(HEALTHY)
    await left_alone(ours, mine)
    await left_alone(theirs, other)
    end_recorded(ours)
    assert len(survivors(theirs, other.placement_id, None)) == 1
    assert len(end_recorded(theirs)) == 1


def test_a_reused_pid_is_never_hit(tmp_path: Path) -> None:
    """A record that names this test's own pid with another start time must not end the test."""
    own = identify(os.getpid())
    assert own is not None
    folder = RunFolder.of(tmp_path, "pl-a")
    folder.prepare()
    stranger = type(own)(own.pid, own.start_ticks - 1, own.boot_id)
    folder.write(RunRecord(order=order(HEALTHY), host="h", phase=Phase.RUNNING, process=stranger))
    assert end_recorded(tmp_path) == []
    assert identify(os.getpid()) == own


def test_a_folder_that_is_not_there_is_nothing_to_end(tmp_path: Path) -> None:
    assert end_recorded(tmp_path / "missing") == []


async def test_a_stop_while_it_is_being_launched_leaves_nothing(tmp_path: Path) -> None:
    runtime = ProcessRuntime(tmp_path / "runs", tmp_path / "cache")
    await runtime.adopt()
    wanted = order(HEALTHY)
    try:
        launching = runtime.launch(wanted)
        first = asyncio.ensure_future(launching)
        await eventually((tmp_path / "runs" / wanted.placement_id).exists)
        await runtime.stop(wanted.placement_id)
        await first
        assert survivors(tmp_path / "runs", wanted.placement_id, None) == []
    finally:
        await runtime.close(stop_instances=True)


async def test_a_record_that_cannot_be_completed_ends_the_child_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RunFolder.write

    def full(folder: RunFolder, record: RunRecord) -> None:
        if record.phase is not Phase.LAUNCHING:
            raise EnvironmentProblemError("The disk is full.")
        write(folder, record)

    monkeypatch.setattr(RunFolder, "write", full)
    runtime = ProcessRuntime(tmp_path / "runs", tmp_path / "cache")
    await runtime.adopt()
    wanted = order(HEALTHY)
    seen = await runtime.launch(wanted)
    await runtime.close(stop_instances=True)
    assert (seen.state, seen.reason) == (InstanceState.EXITED, "launch: The disk is full")
    assert survivors(tmp_path / "runs", wanted.placement_id, None) == []
