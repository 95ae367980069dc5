"""Folders that a workload has closed to its own user, and with that to an agent that is not root, are removed too."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpupool.cli.removal.folder import remove
from gpupool.core.home import Home
from gpupool.runtimes.process.clearing import forget, prune
from gpupool.runtimes.process.records import RunFolder

SOMEBODY = 61999


@contextmanager
def not_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stand in ``folder`` as a user who has no more rights than its files give; it need not reach it from above."""
    monkeypatch.chdir(folder)
    if os.geteuid() != 0:
        yield
        return
    os.chown(folder, SOMEBODY, SOMEBODY)
    os.seteuid(SOMEBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def close_off(work: Path) -> None:
    """Do what a hostile workload does to its own folders."""
    (work / "a" / "b").mkdir(parents=True)
    (work / "a" / "b" / "file").write_text("x")
    (work / "a" / "link").symlink_to("/usr")
    (work / "a" / "b").chmod(0)
    (work / "a").chmod(0o500)
    work.chmod(0)


def test_a_forgotten_run_leaves_its_output_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with not_root(tmp_path, monkeypatch):
        run = RunFolder(Path("run"))
        run.prepare()
        run.output.write_text("said")
        close_off(run.path / "work")
        forget(run)
        assert [path.name for path in run.path.iterdir()] == ["output.log"]


def test_a_run_that_is_too_old_goes_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with not_root(tmp_path, monkeypatch):
        close_off(Path("runs/run/work"))
        prune(Path("runs"), keep=0)
        assert not list(Path("runs").iterdir())


def test_uninstall_removes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with not_root(tmp_path, monkeypatch):
        outside = Path("outside")
        outside.mkdir(mode=0o755)
        close_off(Path("home/agent/runs/run/work"))
        Path("home/agent/out").symlink_to(outside.absolute())
        assert remove(Home(Path("home")), keep_data=False).gone
        assert outside.stat().st_mode & 0o777 == 0o755
