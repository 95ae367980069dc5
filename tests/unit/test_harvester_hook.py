"""The `.pth` line: loads the library in the harvester and nowhere else, and never stands in Python's way."""

import os
import subprocess
from pathlib import Path

import pytest

from fake_chia import make_environment, some_library
from gpupool.harvester import hook

LOOK = 'import os; print("libgpupool" in open("/proc/self/maps").read(), os.environ.get("GPUPOOL_HARVESTER_FALLBACK"))'
VARIABLES = {"GPUPOOL_HARVESTER_FALLBACK": "away"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chia") / "venv"
    make_environment(folder)
    for name in ("chia", "chia_harvester", "chia_wallet"):
        (folder / "bin" / name).write_text(f"#!{folder}/bin/python\n{LOOK}\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


def hooked(environment: Path, library: Path) -> None:
    (site,) = environment.glob("lib/python3.*/site-packages")
    (site / hook.NAME).write_bytes(hook.path_file(library, VARIABLES))


def told(environment: Path, *words: str, **more: str) -> tuple[str, str]:
    """Return what a program of the environment says, and its standard error."""
    done = subprocess.run(
        [environment / "bin" / words[0], *words[1:]],
        env=os.environ | more,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("name", ['lib gpupool\'s "own" ü', "plain"])
def test_it_loads_the_library_in_the_harvester_and_where_plots_are_checked(
    environment: Path, tmp_path: Path, name: str
) -> None:
    library = tmp_path / name / "libgpupool_harvester.so"
    library.parent.mkdir()
    library.write_bytes(some_library())
    hooked(environment, library)
    assert told(environment, "chia_harvester") == ("True away", "")
    assert told(environment, "chia", "plots", "check", "-n", "30") == ("True away", "")
    assert told(environment, "chia", "start", "harvester", "-r") == ("False None", "")
    assert told(environment, "chia_wallet") == ("False None", "")
    assert told(environment, "python", "-c", LOOK) == ("False None", "")


def test_a_variable_that_is_set_already_counts(environment: Path, tmp_path: Path) -> None:
    library = tmp_path / "libgpupool_harvester.so"
    library.write_bytes(some_library())
    hooked(environment, library)
    assert told(environment, "chia_harvester", GPUPOOL_HARVESTER_FALLBACK="off")[0] == "True off"


def test_python_starts_as_ever_where_the_library_has_gone(environment: Path, tmp_path: Path) -> None:
    hooked(environment, tmp_path / "gone.so")
    assert told(environment, "chia_harvester") == ("False None", "")


def test_a_library_that_cannot_be_loaded_is_told_and_does_no_harm(environment: Path, tmp_path: Path) -> None:
    library = tmp_path / "libgpupool_harvester.so"
    library.write_bytes(b"no library")
    hooked(environment, library)
    out, err = told(environment, "chia_harvester")
    assert out == "False away"
    assert "goes on without the pool" in err
    assert "Traceback" not in err


def test_it_is_one_line_of_ascii_that_begins_as_python_wants_it() -> None:
    text = hook.path_file(Path("/opt/gpü pool/\nlib.so"), VARIABLES)
    assert text.isascii()
    assert text.count(b"\n") == 1
    assert text.startswith(b"import ")
