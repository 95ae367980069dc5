"""What runs is told from records and the process table together: neither is believed alone."""

import fcntl
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupool.cli.bundle.archive import gather
from gpupool.cli.checks.all import run_checks
from gpupool.cli.checks.finding import Verdict
from gpupool.cli.local import LocalProcess, LocalState, local_processes, up_pid
from gpupool.core.errors import EnvironmentProblemError
from gpupool.core.home import Home
from gpupool.core.processes import ProcessIdentity, boot_id, identify, identify_self
from gpupool.core.records import ProcessRecord
from gpupool.fleet.ports.runtime import LaunchOrder
from gpupool.runtimes.process.records import Phase, RunFolder, RunRecord

NOBODY = ProcessIdentity(2**22 + 1, 1, boot_id())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "pool").prepare()


@pytest.fixture
def sleeper() -> Iterator[ProcessIdentity]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        found = identify(child.pid)
        assert found is not None
        yield found
        child.kill()


def keep(home: Home, role: str, process: ProcessIdentity) -> None:
    ProcessRecord(role=role, instance_id="inst-1", process=process, host="127.0.0.1", port=1).write(home.run)


def launch(
    home: Home, phase: Phase, process: ProcessIdentity | None = None, reason: str | None = None
) -> None:
    order = LaunchOrder(placement_id="pl-1", workload_name="demo", command=("sleep", "1"))
    folder = RunFolder.of(home.agent / "runs", "pl-1")
    folder.prepare()
    folder.output.write_text("starting\nout of memory\n")
    folder.write(
        RunRecord(order=order, host="127.0.0.1", phase=phase, port=5, process=process, reason=reason)
    )


def named(home: Home, name: str) -> LocalProcess:
    (found,) = (process for process in local_processes(home) if process.name == name)
    return found


def test_without_records_everything_is_off(home: Home) -> None:
    assert {process.state for process in local_processes(home)} == {LocalState.OFF}


def test_a_recorded_process_that_exists_runs(home: Home) -> None:
    keep(home, "control", identify_self())
    found = named(home, "control")
    assert (found.state, found.address, found.why) == (LocalState.RUNNING, "http://127.0.0.1:1", None)


def test_a_suspended_process_is_frozen_and_says_how_to_go_on(home: Home, sleeper: ProcessIdentity) -> None:
    keep(home, "gateway", sleeper)
    sleeper.signal(signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while named(home, "gateway").state is not LocalState.FROZEN:
        assert time.monotonic() < deadline
    assert f"kill -CONT {sleeper.pid}" in (named(home, "gateway").why or "")


def test_a_record_of_the_dead_tells_the_last_words(home: Home) -> None:
    keep(home, "agent", NOBODY)
    (home.logs / "agent.log").write_text("Traceback\nKeyError: 'x'\n")
    found = named(home, "agent")
    assert found.state is LocalState.DIED
    assert not found.exists
    assert "KeyError" in (found.why or "")


def test_a_pid_that_now_belongs_to_a_stranger_is_not_ours(home: Home) -> None:
    mine = identify_self()
    keep(home, "control", ProcessIdentity(mine.pid, mine.start_ticks - 1, mine.boot_id))
    assert named(home, "control").state is LocalState.DIED


@pytest.mark.parametrize("content", ["", "{", "[]", '{"role": "control"}'])
def test_a_record_that_is_none_counts_as_none(home: Home, content: str) -> None:
    (home.run / "control.json").write_text(content)
    assert named(home, "control").state is LocalState.OFF


def test_records_that_cannot_be_read_are_told_as_that(home: Home) -> None:
    """A folder in a record's place cannot be read by anyone, as another user's records cannot by most."""
    (home.run / "control.json").mkdir()
    with pytest.raises(EnvironmentProblemError, match="cannot be read"):
        local_processes(home)
    findings = {finding.name: finding for finding in run_checks(home, {})}
    assert findings["process records"].verdict is Verdict.FAIL
    assert "state folder" in findings
    assert b"cannot be read" in gather(home, {}).files["processes.json"]


def test_workloads_by_their_run_records(home: Home) -> None:
    launch(home, Phase.RUNNING, identify_self())
    assert named(home, "demo").state is LocalState.RUNNING
    launch(home, Phase.RUNNING, NOBODY)
    died = named(home, "demo")
    assert (died.state, died.kind, died.placement) == (LocalState.DIED, "chute", "pl-1")
    assert "out of memory" in (died.why or "")
    launch(home, Phase.LAUNCHING)
    assert named(home, "demo").state is LocalState.DIED
    launch(home, Phase.EXITED, reason="exit 3")
    assert (named(home, "demo").state, named(home, "demo").why) == (LocalState.OFF, "exit 3")


def test_the_up_that_holds_the_folder_is_found_without_locking(home: Home) -> None:
    assert up_pid(home) is None
    lock = home.run / "up.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(str(identify_self().pid))
        file.flush()
        assert up_pid(home) == identify_self().pid
    # The number stays in the file; who does not hold it open any more is not up.
    assert up_pid(home) is None
    lock.write_text("not a number")
    assert up_pid(home) is None
