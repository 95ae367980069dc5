"""`recompute selftest` and `bench` on real devices: the CPU, and PoCL as a card; and on devices that are wrong."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpupool.cli import recompute_flags
from gpupool.cli.main import app
from gpupool.core.errors import GpupoolError
from gpupool.devices.recovery.cards import CPU_AS_CARD
from gpupool.recompute.bench.device import Device, DeviceFailedError
from gpupool.recompute.bench.questions import known_question
from gpupool.recompute.server.staffing import WorkerPlan, cpu_worker

ENGINES = "bench_engines"


@pytest.fixture(autouse=True)
def _engines_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parent.parent))


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["recompute", *words])
    if isinstance(result.exception, GpupoolError):
        return result.exception.exit_code, result.exception.message
    return result.exit_code, result.output


def wrong(function: str) -> WorkerPlan:
    return WorkerPlan(name=function, engine="test", factory=f"{ENGINES}:{function}", threads=1)


def test_every_device_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPU_AS_CARD, "1")
    code, output = run("selftest", "--levels", "1", "-r", "1", "--json")
    assert code == 0, output
    verdicts = json.loads(output)
    assert [verdict["engine"] for verdict in verdicts] == ["numba", "opencl"]
    assert all(verdict["well"] and not verdict["why"] for verdict in verdicts)


def test_a_device_that_is_wrong_is_named_and_the_others_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [wrong("lying"), wrong("crashing"), wrong("unfit"), cpu_worker("cpu", 1)]
    monkeypatch.setattr(recompute_flags.DeviceOptions, "workers", lambda self: (plans, []))
    code, output = run("selftest", "--levels", "1")
    lines = output.splitlines()
    assert code == 5
    assert lines[0].startswith("lying (test): WRONG: quality at C1: its answer is wrong.")
    assert "crashing (test): WRONG: quality at C1: It failed: its process ended with signal 11." in lines[1]
    assert "unfit (test): WRONG: The card is not there" in lines[2]
    assert lines[3].startswith("cpu (numba): right")


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


def test_the_table_says_what_it_was_reckoned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [wrong("crashing"), cpu_worker("cpu", 1)]
    monkeypatch.setattr(recompute_flags.DeviceOptions, "workers", lambda self: (plans, []))
    code, output = run("bench", "--levels", "1", "--seconds", "0.05")
    assert code == 5
    assert "FILTER 256" in output
    assert "PiB" in output or "TiB" in output
    assert "full proof in 4% of look-ups" in output
    assert "crashing failed: It failed: its process ended with signal 11." in output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench", "--levels", "9"), "no list of levels"),
        (("bench", "--chart", "farm.png"), "SVG"),
        (("selftest", "-g", "7"), "no CUDA card 7"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], said: str) -> None:
    code, output = run(*words)
    assert code == 2
    assert said in output
