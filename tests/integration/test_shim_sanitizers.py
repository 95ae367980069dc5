"""The harvester's library from many threads under sanitizers, in front of a sidecar that does something bad each time."""

import itertools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpupool.harvester.building import COMPILERS, FLAGS, LINK_FLAGS, sources
from shim_hostile import HOSTILE
from shim_stage import answers, sidecar

DRIVER = Path(__file__).resolve().parents[1] / "native" / "shim_driver.c"
SANITIZERS = {
    "memory": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "threads": ("-fsanitize=thread",),
}


def driver(folder: Path, *flags: str) -> Path:
    """Compile driver and library into one program."""
    program = folder / "driver"
    compiler = next(filter(None, map(shutil.which, COMPILERS)))
    kept = [flag for flag in FLAGS if flag not in {"-shared", "-fPIC"} and "FORTIFY" not in flag]
    line = [compiler, *kept, "-g", *flags, "-o", str(program), str(DRIVER), *map(str, sources()), *LINK_FLAGS]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def drive(command: Sequence[str | Path], log: Path, *, forks: int = 0) -> dict[str, int]:
    """Run it with two good answers in three; return what it counted. There is no bundled library to fall back to."""
    used = (
        bad for name, (bad, why) in HOSTILE.items() if why != "silent" and name != "a proof for a quality"
    )
    bad = itertools.cycle(used)
    numbers = itertools.count()

    def behave(taken: socket.socket, body: bytes) -> None:
        (next(bad) if next(numbers) % 3 == 2 else answers)(taken, body)

    with sidecar(behave) as running:
        settings = {"SIDECAR": running.address, "LOG": str(log), "TIMEOUT_MS": "19000", "FALLBACK": "away"}
        given = {f"GPUPOOL_HARVESTER_{name}": value for name, value in settings.items()}
        strict = {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66", "ASAN_OPTIONS": "detect_leaks=1"}
        done = subprocess.run(
            [*command, "12", "20", str(forks)],
            env={"PATH": os.environ["PATH"], **given, **strict},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", done.stdout)}


def fixed_layout() -> list[str]:
    """Where memory is laid out at random, a sanitizer may miss the places it counts on; some containers forbid this."""
    line = ["setarch", "-R"]
    return line if subprocess.run([*line, "true"], capture_output=True, check=False).returncode == 0 else []


@pytest.mark.parametrize("kind", SANITIZERS)
def test_no_call_from_many_threads_touches_what_it_must_not(tmp_path: Path, kind: str) -> None:
    command: list[str | Path] = [*fixed_layout(), driver(tmp_path, *SANITIZERS[kind])]
    counted = drive(command, tmp_path / "shim.log", forks=0 if kind == "threads" else 5)
    assert counted["good"] > 100
    assert counted["failed"] > 10
    assert counted["wrong"] == 0
    assert counted["good"] + counted["failed"] == 12 * 20 * 2


@pytest.mark.slow  # it needs valgrind, which the others do not
@pytest.mark.timeout(300)
def test_valgrind_finds_nothing(tmp_path: Path) -> None:
    assert shutil.which("valgrind"), "install it: apt install valgrind"
    line: list[str | Path] = [
        "valgrind",
        "--quiet",
        "--error-exitcode=9",
        "--leak-check=full",
        driver(tmp_path, "-O1"),
    ]
    counted = drive(line, tmp_path / "shim.log")
    assert counted["good"] > 100
    assert counted["wrong"] == 0
