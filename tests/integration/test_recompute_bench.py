"""`recompute selftest` and `bench` on real devices: the CPU, and PoCL as a card; and on devices that are wrong."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpupool.cli import recompute_flags
from gpupool.cli.main import app
from gpupool.core.errors import EnvironmentProblemError, GpupoolError
from gpupool.core.processes import identify
from gpupool.devices.recovery.cards import CPU_AS_CARD
from gpupool.recompute.bench.device import Device, DeviceFailedError
from gpupool.recompute.bench.questions import known_question
from gpupool.recompute.server import settings
from gpupool.recompute.server.staffing import WorkerPlan, cpu_worker

ENGINES = "bench_engines"


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _engines_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parent.parent))


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["recompute", *words])
    if isinstance(result.exception, GpupoolError):
        return result.exception.exit_code, result.exception.message
    return result.exit_code, result.output


def wrong(function: str, index: int | None = None) -> WorkerPlan:
    return WorkerPlan(name=function, engine="test", factory=f"{ENGINES}:{function}", threads=1, index=index)


def devices(patch: pytest.MonkeyPatch, *plans: WorkerPlan) -> None:
    """Let the machine have these devices."""
    staff = recompute_flags.Staff(list(plans), [], {})
    patch.setattr(recompute_flags.DeviceOptions, "staff", lambda self: staff)


def test_every_device_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_AS_CARD, "1")
    code, output = run("selftest", "--levels", "1", "-r", "1", "--json")
    assert code == 0, output
    verdicts = json.loads(output)
    assert [verdict["engine"] for verdict in verdicts] == ["numba", "opencl"]
    assert all(verdict["well"] and not verdict["why"] for verdict in verdicts)


def test_a_device_that_is_wrong_is_named_and_the_others_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    devices(monkeypatch, wrong("lying"), wrong("crashing"), wrong("unfit", 3), cpu_worker("cpu", 1))
    code, output = run("selftest", "--levels", "1")
    lines = output.splitlines()
    assert code == 5
    assert lines[0].startswith("lying (test): WRONG: quality at C1: its answer is wrong.")
    assert "crashing (test): WRONG: quality at C1: It failed: its process ended with signal 11." in lines[1]
    assert "unfit (test 3): WRONG: The card is not there" in lines[2]
    assert lines[3].startswith("cpu (numba): right")


def test_a_driver_that_crashes_is_wrong_though_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It does so where its cards are listed, so there is no card to be named."""
    (tmp_path / "pyopencl.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    code, output = run("selftest", "--levels", "1", "-r", "1", "-G", "0")
    assert code == 5
    assert "OpenCL driver (opencl): WRONG: looking for them ended with signal 11" in output
    assert "(numba): right" in output


async def test_a_device_that_hangs_is_given_up() -> None:
    device = Device(wrong("hanging"))
    try:
        await device.ready(60)
        with pytest.raises(DeviceFailedError, match=r"no answer within 0\.2 s"):
            await device.ask("quality", known_question("quality", 1), 0.2)
    finally:
        await device.close()


async def test_a_device_that_is_never_ready_is_given_up() -> None:
    device = Device(wrong("compiling"))
    with pytest.raises(DeviceFailedError, match=r"not ready after 0\.2 s"):
        await device.ready(0.2)
    await asyncio.wait_for(device.close(), 30)


def test_speed_and_farm_are_told(tmp_path: Path) -> None:
    chart = tmp_path / "farm.svg"
    code, output = run(
        "bench",
        "--levels",
        "1-2",
        "--seconds",
        "0.05",
        "-r",
        "2",
        "--json",
        "--chart",
        str(chart),
        "-G",
        "0",
        "-O",
        "0",
    )
    assert code == 0, output
    found = json.loads(output)
    assert [(one["engine"], one["level"]) for one in found["measured"]] == [("numba", 1), ("numba", 2)]
    for one in found["measured"]:
        assert 0 < one["quality"]["p50_ms"] <= one["quality"]["p99_ms"]
        assert one["quality"]["per_second"] > one["proof"]["per_second"] > 0
    assert [(row["level"], row["devices"]) for row in found["farm"]] == [(1, 1), (2, 1)]
    assert found["farm"][0]["largest_tib"]["512"] == 2 * found["farm"][0]["largest_tib"]["256"]
    assert chart.read_text().startswith("<svg")


def test_the_table_says_what_it_was_reckoned_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    devices(monkeypatch, wrong("crashing", 1), cpu_worker("cpu", 1))
    chart = tmp_path / "farm.png"
    code, output = run("bench", "--levels", "1", "--seconds", "0.05", "--chart", str(chart))
    assert code == 5
    assert chart.read_bytes().startswith(PNG)
    assert "FILTER 256" in output
    assert "PiB" in output or "TiB" in output
    assert "full proof in 4% of look-ups" in output
    assert "crashing (test 1) failed at C1: It failed: its process ended with signal 11." in output
    assert "What to do: Look at the driver's log" in output


def test_a_level_that_fails_costs_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It crashes at C2, has no memory for C3, and gets no answer out at C5, after which nothing more is tried."""
    monkeypatch.setattr("gpupool.recompute.bench.measuring.ANSWER_SECONDS", 3.0)
    devices(monkeypatch, wrong("limited"))
    code, output = run("bench", "--levels", "1-7", "--seconds", "0.05", "--json")
    assert code == 5, output
    found = json.loads(output)
    assert [one["level"] for one in found["measured"]] == [1, 4]
    assert [(row["level"], row["devices"]) for row in found["farm"]] == [(1, 1), (4, 1)]
    crashed, small, silent = found["failed"]
    assert (crashed["levels"], small["levels"], silent["levels"]) == ([2], [3], [5, 6, 7])
    assert "signal 11" in crashed["why"]
    assert "memory" in small["why"]
    assert "no answer within 3 s" in silent["why"]


def test_a_device_that_does_not_start_fails_at_all_levels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    devices(monkeypatch, wrong("unfit"))
    words = ("recompute", "bench", "--levels", "1,3", "--json", "--chart", str(tmp_path / "farm.svg"))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 5
    found = json.loads(result.stdout)
    assert [one["levels"] for one in found["failed"]] == [[1, 3]]
    assert (found["measured"], found["farm"]) == ([], [])
    assert "was not drawn" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench", "--levels", "9"), "no list of levels"),
        (("bench", "--levels", "3-1"), "no list of levels"),
        (("bench", "--levels", "0-7"), "no list of levels"),
        (("bench", "--levels", ""), "no list of levels"),
        (("bench", "--chart", "farm.gif"), "SVG or a PNG"),
        (("bench", "--chart", "none/farm.svg"), "no folder none"),
        (("selftest", "-g", "7"), "no CUDA card 7"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], said: str) -> None:
    code, output = run(*words)
    assert code == 2
    assert said in output


@contextmanager
def command(checkout: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command of its own, with the engines of these tests and no card."""
    child = subprocess.Popen(
        [sys.executable, "-m", "gpupool", "recompute", *words, "-r", "1", "-G", "0", "-O", "0"],
        env=os.environ | {"PYTHONPATH": str(checkout / "src"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def worker_of(child: subprocess.Popen[str]) -> int:
    """Wait until a command has a worker process; return its id."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        for pid in map(int, children):
            if b"gpupool.recompute.server.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise AssertionError("there is no worker")


@pytest.mark.parametrize("words", [("bench", "--levels", "5", "--seconds", "60"), ("selftest",)])
def test_an_interrupt_ends_it_with_json_that_is_whole(checkout: Path, words: tuple[str, ...]) -> None:
    with command(checkout, *words, "--json") as child:
        worker = identify(worker_of(child))
        child.send_signal(signal.SIGINT)
        printed, told = child.communicate(timeout=60)
    assert child.returncode == 130, told
    found = json.loads(printed)
    assert (found["measured"] if words[0] == "bench" else found) == []
    assert worker is not None
    assert worker.wait_gone(30)


def test_a_worker_that_is_killed_before_it_is_ready_is_told(checkout: Path) -> None:
    with command(checkout, "bench", "--levels", "1,2", "--seconds", "0.05", "--json") as child:
        os.kill(worker_of(child), signal.SIGKILL)
        printed, _ = child.communicate(timeout=100)
    assert child.returncode == 5
    (failure,) = json.loads(printed)["failed"]
    assert failure["levels"] == [1, 2]
    assert "Before it was ready, its process was killed (signal 9)" in failure["why"]


async def test_a_device_that_ended_between_two_questions_is_not_waited_for() -> None:
    device = Device(wrong("limited"))
    try:
        await device.ready(60)
        device._process.kill()
        await device._process.ended
        with pytest.raises(DeviceFailedError, match="killed"):
            await asyncio.wait_for(device.ask("quality", known_question("quality", 1), 600), 60)
    finally:
        await device.close()


def test_what_was_measured_is_told_though_the_chart_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The disk fills up while it is measured."""
    devices(monkeypatch, wrong("limited"))
    monkeypatch.setattr("gpupool.recompute.bench.pictures.check_file", lambda path: None)
    chart = tmp_path / "gone" / "farm.svg"
    words = ("recompute", "bench", "--levels", "1", "--seconds", "0.05", "--json", "--chart", str(chart))
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, EnvironmentProblemError)
    assert "cannot be written" in result.exception.message
    assert [one["level"] for one in json.loads(result.stdout)["measured"]] == [1]


@pytest.mark.parametrize(
    ("flag", "ours", "original", "wanted"),
    [(None, "3", "2", 3), (1, "3", "2", 1), (None, None, "2", 2), (None, "0", "2", 8), (None, None, None, 8)],
)
def test_threads_are_counted_as_the_server_counts_them(
    monkeypatch: pytest.MonkeyPatch, flag: int | None, ours: str | None, original: str | None, wanted: int
) -> None:
    monkeypatch.setattr(settings, "usable_cores", lambda: 8)
    for name, value in {"GPUPOOL_RECOMPUTE_THREADS": ours, "CHIAPOS_MAX_CORES": original}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    options = recompute_flags.DeviceOptions(threads=flag, cuda_devices=0, opencl_devices=0)
    assert [plan.threads for plan in options.staff().plans] == [wanted]
