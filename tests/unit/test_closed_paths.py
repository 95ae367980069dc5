"""Which path of a command is closed to a workload, and what is said of it."""

import sys
from pathlib import Path

import pytest

from gpupool.runtimes.process.closed_paths import closed_path
from gpupool.runtimes.process.reasons import with_closed_path


@pytest.fixture
def opened(tmp_path: Path) -> dict[str, list[str]]:
    """An allow-list with one folder beside a closed one."""
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text("")
    return {"read": [str(tmp_path / "open")], "write": []}


def test_the_first_existing_path_outside_the_list_is_found(
    tmp_path: Path, opened: dict[str, list[str]]
) -> None:
    inside, outside = tmp_path / "open" / "app.py", tmp_path / "closed" / "app.py"
    assert closed_path(["serve", str(inside), str(tmp_path / "missing"), "app.py", "/"], opened) is None
    assert closed_path(["serve", str(inside), str(outside)], opened) == outside
    assert closed_path(["serve", f"--code={outside}"], opened) == outside


def test_links_count_by_the_folder_they_stand_in(tmp_path: Path, opened: dict[str, list[str]]) -> None:
    folder = tmp_path / "link"
    folder.symlink_to(tmp_path / "open")
    assert closed_path([str(folder / "app.py")], opened) is None
    python = tmp_path / "closed" / "python"
    python.symlink_to(sys.executable)
    assert closed_path([str(python)], opened) == python


def test_nothing_is_closed_without_a_list(tmp_path: Path) -> None:
    assert closed_path([str(tmp_path)], None) is None


def test_the_reason_says_how_to_open_it() -> None:
    assert with_closed_path("exit: code 2 after 0.1 s", None) == "exit: code 2 after 0.1 s"
    told = with_closed_path("exit: code 2 after 0.1 s", Path("/srv/app.py"))
    assert told.startswith(
        "exit: code 2 after 0.1 s; the pool's wall keeps workloads from reading /srv/app.py"
    )
    assert "GPUPOOL_WORKLOAD_PATHS" in told
