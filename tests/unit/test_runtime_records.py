"""Run records and the folders they lie in."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.core.processes import ProcessIdentity
from gpupool.runtimes.process.clearing import forget, prune
from gpupool.runtimes.process.records import Phase, RunFolder, RunRecord, all_runs, give_to
from workloads import order

PROCESS = ProcessIdentity(4242, 99, "boot")


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path, "pl-a")
    folder.prepare()
    wanted = order(("python", "x"), env={"A": "1"}, gpu_indices=(1,), gpu_uuids=("GPU-a",))
    record = RunRecord(
        order=wanted, host="h", phase=Phase.RUNNING, port=30000, process=PROCESS, restarts=2, streak=1
    )
    folder.write(record)
    assert folder.read() == record
    assert folder.record_path.stat().st_mode & 0o777 == 0o600


@given(st.binary(max_size=300))
def test_what_is_no_record_is_none(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.record_path.write_bytes(content)
    assert folder.read() is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["order", "process", "phase", "x"]), inner)
        ),
        max_leaves=8,
    )
)
def test_any_json_that_is_no_record_is_none(value: object) -> None:
    assert RunRecord.from_json(value) is None


def test_an_exit_drops_the_process() -> None:
    record = RunRecord(order=order(("x",)), host="h", phase=Phase.RUNNING, process=PROCESS).exited("stopped")
    assert (record.phase, record.process, record.reason) == (Phase.EXITED, None, "stopped")


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "/etc", "a\0b"])
def test_an_id_never_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError):
        RunFolder.of(tmp_path, name)


def test_only_runs_with_a_record_are_listed(tmp_path: Path) -> None:
    assert list(all_runs(tmp_path / "missing")) == []
    kept = RunFolder.of(tmp_path, "pl-b")
    kept.prepare()
    kept.write(RunRecord(order=order(("x",)), host="h"))
    (tmp_path / "pl-a").mkdir()
    assert [folder.path.name for folder, _ in all_runs(tmp_path)] == ["pl-b"]


def test_forgotten_runs_keep_their_output_until_newer_ones_push_it_out(tmp_path: Path) -> None:
    for name in ("pl-1", "pl-2", "pl-3", "pl-4"):
        folder = RunFolder.of(tmp_path, name)
        folder.prepare()
        folder.write(RunRecord(order=order(("x",)), host="h"))
        folder.output.write_text(name)
    for name in ("pl-1", "pl-2", "pl-3"):
        forget(RunFolder.of(tmp_path, name))
    assert sorted(path.name for path in (tmp_path / "pl-1").iterdir()) == ["output.log"]
    prune(tmp_path, keep=1)
    left = {path.name for path in tmp_path.iterdir()}
    assert "pl-4" in left
    assert len(left) == 2


def test_a_link_in_place_of_the_record_is_replaced_and_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("planted")
    folder = RunFolder.of(tmp_path / "runs", "pl-a")
    folder.prepare()
    folder.record_path.symlink_to(secret)
    record = RunRecord(order=order(("python", "x")), host="h")
    folder.write(record)
    assert secret.read_text() == "planted"
    assert not folder.record_path.is_symlink()
    assert folder.read() == record


def test_clearing_removes_links_and_nothing_behind_them(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "kept").write_text("kept")
    folder = RunFolder.of(tmp_path / "runs", "pl-a")
    folder.prepare()
    home, work, temporary = folder.private
    (home / "link").symlink_to(outside)
    (work / "link").symlink_to(outside / "deep" / "kept")
    temporary.rmdir()
    temporary.symlink_to(outside, target_is_directory=True)
    forget(folder)
    assert not home.exists()
    assert not work.exists()
    prune(tmp_path / "runs", keep=0)
    assert not folder.path.exists()
    assert (outside / "deep" / "kept").read_text() == "kept"


def test_a_folder_is_given_away_and_not_what_a_link_in_its_place_leads_to(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    other = 61_999 if os.geteuid() == 0 else os.geteuid()
    give_to(link, other)
    assert target.stat().st_uid == os.geteuid()
    assert link.lstat().st_uid == other
    with pytest.raises(EnvironmentProblemError, match="cannot be given"):
        give_to(tmp_path / "nothing", os.geteuid())
