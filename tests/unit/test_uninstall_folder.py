"""Removing a state folder takes exactly that folder, whatever GPUPOOL_HOME names and whatever lies in it."""

import os
from pathlib import Path

import pytest

from gpupool.cli.removal.folder import NotAStateFolderError, Removed, refuse_unfit, remove
from gpupool.cli.removal.processes import StillRunningError, end_everything
from gpupool.cli.removal.words import farewell
from gpupool.core.home import Home
from gpupool.core.ids import new_id
from gpupool.core.processes import identify_self
from gpupool.core.records import ProcessRecord


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A state folder as a first start leaves it."""
    made = Home(tmp_path / "pool").prepare()
    made.operator_token.write_text("token\n")
    made.database.write_bytes(b"rows")
    (made.logs / "control.log").write_text("line\n")
    (made.agent / "node.key").write_text("key\n")
    run = made.agent / "runs" / "pl-1"
    run.mkdir(parents=True)
    (run / "output.log").write_text("words\n")
    return made


def refuse(root: Path, **stand_ins: Path) -> str:
    with pytest.raises(NotAStateFolderError) as refused:
        refuse_unfit(Home(root), **stand_ins)
    return refused.value.message


def test_a_whole_folder_goes(home: Home) -> None:
    home.alerts.write_text("targets: []")
    refuse_unfit(home)
    removed = remove(home, keep_data=False)
    assert (removed.gone, removed.stayed, removed.links) == (True, [], [])
    assert not home.root.exists()


def test_keep_data_keeps_what_the_next_start_goes_on_from(home: Home) -> None:
    remove(home, keep_data=True)
    assert home.database.read_bytes() == b"rows"
    assert home.operator_token.exists()
    assert (home.agent / "node.key").exists()
    assert not home.logs.exists()
    assert not home.cache.exists()
    assert not (home.agent / "runs").exists()


def test_what_keep_data_leaves_is_still_ours(home: Home) -> None:
    remove(home, keep_data=True)
    refuse_unfit(home)
    assert remove(home, keep_data=False).gone


def test_the_command_that_removes_the_program_can_be_pasted(home: Home, tmp_path: Path) -> None:
    checkout = tmp_path / "my checkout"
    (checkout / ".venv").mkdir(parents=True)
    told = "\n".join(farewell(home, Removed(gone=True, stayed=[], links=[]), checkout))
    assert f"`rm -rf '{checkout}/.venv'`" in told


def test_paths_below_the_working_folder_are_told_short(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".venv").mkdir()
    monkeypatch.chdir(tmp_path)
    told = farewell(home, Removed(gone=True, stayed=[], links=[]), tmp_path)
    assert told[0] == "removed pool"
    assert "`rm -rf .venv`" in told[1]


def test_what_the_pool_did_not_make_stays_and_is_named(home: Home) -> None:
    (home.root / "thesis.tex").write_text("years of work")
    removed = remove(home, keep_data=False)
    assert not removed.gone
    assert removed.stayed == ["thesis.tex"]
    assert (home.root / "thesis.tex").read_text() == "years of work"
    assert not home.keys.exists()


def test_links_go_and_what_they_point_to_stays(home: Home, tmp_path: Path) -> None:
    for name in ("models", "disk", "outside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").write_text("x")
    (home.cache / "models").symlink_to(tmp_path / "models", target_is_directory=True)
    (home.agent / "runs" / "pl-1" / "work").symlink_to(tmp_path / "outside", target_is_directory=True)
    os.rename(home.logs, tmp_path / "real-logs")
    home.logs.symlink_to(tmp_path / "real-logs", target_is_directory=True)
    removed = remove(home, keep_data=False)
    assert removed.gone
    assert len(removed.links) == 3
    assert (tmp_path / "models" / "precious").exists()
    assert (tmp_path / "outside" / "precious").exists()
    assert (tmp_path / "real-logs" / "control.log").exists()


def test_a_folder_that_is_a_link_is_refused(home: Home, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(home.root, target_is_directory=True)
    assert "is a link" in refuse(link)


def test_a_linked_run_folder_is_refused(home: Home, tmp_path: Path) -> None:
    """The lock lies in it, so a lock taken there would guard another folder."""
    os.rename(home.run, tmp_path / "elsewhere")
    home.run.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert "is a link" in refuse(home.root)


@pytest.mark.parametrize("missing", ["keys", "data", "run"])
def test_a_folder_that_no_start_has_made_is_refused(home: Home, missing: str) -> None:
    os.rename(home.root / missing, home.root / "other")
    assert f"no folder {missing}" in refuse(home.root)


def test_a_folder_without_token_and_database_is_refused(home: Home) -> None:
    home.operator_token.unlink()
    home.database.unlink()
    assert "neither token nor database" in refuse(home.root)


def test_the_users_home_is_refused_even_with_a_pool_in_it(home: Home) -> None:
    assert "your home folder" in refuse(home.root, user_home=home.root)
    assert "your home folder" in refuse(home.root, user_home=home.root / "data" / "me")


def test_the_folder_one_stands_in_is_refused(home: Home) -> None:
    assert "the folder you are in" in refuse(home.root, here=home.logs)


@pytest.mark.parametrize("root", ["/", "/usr", "/etc", "/tmp", "/var", "/does-not-exist"])
def test_folders_of_the_machine_are_refused(root: str) -> None:
    assert refuse(Path(root))


def test_a_source_tree_is_refused(home: Home) -> None:
    (home.root / ".git").mkdir()
    assert "source tree" in refuse(home.root)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "not a folder" in refuse(tmp_path / "file")


def test_a_process_that_up_did_not_start_is_left_alone(home: Home) -> None:
    """This test's own process stands for a control that systemd runs."""
    ProcessRecord(role="control", instance_id=new_id("inst"), process=identify_self()).write(home.run)
    with pytest.raises(StillRunningError, match="control \\(pid"):
        end_everything(home)
    assert identify_self().alive()
