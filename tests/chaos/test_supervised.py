"""The same deaths under `gpupool up`, which starts again what has died: nobody lifts a hand."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpupool.core.failpoints import VARIABLE
from gpupool.core.processes import ProcessIdentity
from up_run import UpRun, until, up_run

HELLO = """
name: hello
command: [python, -m, http.server, "{port}", --bind, "{host}"]
health: /
memory_mb: 64
grace: 2
"""


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[UpRun, Path]]:
    """A pool without the demo, and the file in which its processes look for where to die."""
    folder = tmp_path_factory.mktemp("supervised")
    failpoint = folder / "failpoint"
    os.environ[VARIABLE] = str(failpoint)
    try:
        with up_run(folder / "home") as run:
            run.start("--no-demo")
            yield run, failpoint
    finally:
        del os.environ[VARIABLE]


@pytest.mark.parametrize(
    ("role", "up", "down"),
    [
        ("control", "control.placement.planned.after", "control.placement.ended.before"),
        ("agent", "runtime.launch.spawned", "agent.journal.stop.after"),
    ],
)
def test_up_brings_back_what_died_and_the_pool_goes_on(
    armed: tuple[UpRun, Path], role: str, up: str, down: str
) -> None:
    run, failpoint = armed
    before = run.role(role)
    failpoint.write_text(up)
    assert run.cli("chute", "deploy", "-", "--no-wait", stdin=HELLO).returncode == 0
    until(lambda: not failpoint.exists(), what=f"a death at {up}")
    until(lambda: one_active(run), what="an active chute")
    between = run.role(role)
    assert between != before
    failpoint.write_text(down)
    assert run.cli("chute", "delete", "hello", "--yes").returncode == 0
    until(lambda: not failpoint.exists(), what=f"a death at {down}")
    until(lambda: came_back(run, role, between), what=f"another {role}")
    until(lambda: run.json("status")["devices"][0]["claims"] == [], what="the end of the chute's claim")
    assert run.workload_processes() == []
    assert f"{role} ended (SIGKILL)" in run.output()


def test_of_two_that_start_at_once_one_runs(tmp_path: Path) -> None:
    with up_run(tmp_path / "home") as run, ExitStack() as stack:
        outs = [tmp_path / f"{number}.out" for number in range(2)]
        both = [stack.enter_context(started(run, out)) for out in outs]
        until(lambda: any(one.poll() is not None for one in both), what="a refusal")
        (loser,) = (number for number, one in enumerate(both) if one.poll() is not None)
        winner = 1 - loser
        assert both[loser].returncode == 5
        assert f"(pid {both[winner].pid})" in outs[loser].read_text()
        until(lambda: "up; stop with Ctrl-C" in outs[winner].read_text(), what="the winner's start")
        assert run.cli("status").returncode == 0
        both[winner].send_signal(signal.SIGINT)
        assert both[winner].wait(60) == 0
        assert run.alive() == []
        assert run.bound_ports() == []


@contextmanager
def started(run: UpRun, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``up`` and end it at the end whatever the test did."""
    with out.open("wb") as file:
        process = subprocess.Popen(run.arguments("--no-demo"), env=run.env, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def came_back(run: UpRun, role: str, before: ProcessIdentity) -> bool:
    """Tell whether another process has the role and control answers."""
    return run.role(role) != before and run.cli("status").returncode in {0, 1}


def one_active(run: UpRun) -> bool:
    """Tell whether exactly one placement lives, is active, and has one process."""
    answer = run.cli("chute", "show", "hello", "--json")
    if answer.returncode != 0:
        return False
    shown: dict[str, Any] = run.json("chute", "show", "hello")
    return bool(shown["active"] == shown["live"] == 1) and len(run.workload_processes()) == 1
