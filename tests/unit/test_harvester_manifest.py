"""What the installer writes is listed first, never takes a stranger's file, and can be taken back to the byte."""

import os
from pathlib import Path

import pytest

from gpupool.core import failpoints
from gpupool.core.errors import ConflictError, EnvironmentProblemError
from gpupool.harvester.manifest import FILE, Manifest, WantedFile


def wanted(path: Path, content: bytes = b"ours", mode: int = 0o644) -> WantedFile:
    return WantedFile(path=path, content=content, why="a test", mode=mode)


def actions(manifest: Manifest, *files: WantedFile) -> list[str]:
    return [step.action for step in manifest.plan(files)]


def picture(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_what_is_installed_is_there_and_can_be_taken_back_to_the_byte(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "precious").write_bytes(b"\x00\xff")
    before = picture(tmp_path)
    manifest = Manifest.read(tmp_path / "state")
    files = [wanted(theirs / "a.pth"), wanted(tmp_path / "new" / "deep" / "b.so", b"lib", 0o755)]
    assert actions(manifest, *files) == ["write", "write"]
    manifest.carry_out(files, {"x": 1})
    assert (theirs / "a.pth").read_bytes() == b"ours"
    assert (tmp_path / "new" / "deep" / "b.so").stat().st_mode & 0o777 == 0o755
    again = Manifest.read(tmp_path / "state")
    assert again.about == {"x": 1}
    assert actions(again, *files) == ["keep", "keep"]
    again.take_back(list(again.files))
    again.forget()
    assert picture(tmp_path) == before


def test_a_second_installation_changes_what_differs_and_drops_what_is_not_wanted(tmp_path: Path) -> None:
    manifest = Manifest.read(tmp_path / "state")
    manifest.carry_out([wanted(tmp_path / "a"), wanted(tmp_path / "b")], {})
    steps = Manifest.read(tmp_path / "state").carry_out([wanted(tmp_path / "a", b"new")], {})
    assert [(step.action, step.path.name) for step in steps] == [("replace", "a"), ("remove", "b")]
    assert not (tmp_path / "b").exists()
    assert list(Manifest.read(tmp_path / "state").files) == [tmp_path / "a"]


def test_a_mode_that_was_changed_is_set_right(tmp_path: Path) -> None:
    manifest = Manifest.read(tmp_path / "state")
    manifest.carry_out([wanted(tmp_path / "a", mode=0o755)], {})
    (tmp_path / "a").chmod(0o600)
    assert actions(manifest, wanted(tmp_path / "a", mode=0o755)) == ["replace"]


@pytest.mark.parametrize("how", ["file", "folder", "link", "dangling"])
def test_what_is_not_ours_is_never_touched(tmp_path: Path, how: str) -> None:
    path, other = tmp_path / "a", tmp_path / "other"
    if how == "file":
        path.write_text("theirs")
    elif how == "folder":
        path.mkdir()
    else:
        path.symlink_to(other)
        if how == "link":
            other.write_text("theirs")
    manifest = Manifest.read(tmp_path / "state")
    with pytest.raises(ConflictError, match="Somebody else"):
        manifest.carry_out([wanted(path)], {})
    assert not (tmp_path / "state").exists()


def test_a_file_that_somebody_changed_is_neither_replaced_nor_removed(tmp_path: Path) -> None:
    manifest = Manifest.read(tmp_path / "state")
    manifest.carry_out([wanted(tmp_path / "a"), wanted(tmp_path / "b")], {})
    (tmp_path / "b").write_text("edited")
    for attempt in (
        lambda: manifest.plan([wanted(tmp_path / "a"), wanted(tmp_path / "b")]),
        lambda: manifest.plan([wanted(tmp_path / "a")]),
        lambda: manifest.take_back(list(manifest.files)),
        manifest.check_unchanged,
    ):
        with pytest.raises(ConflictError, match=r"b\. Nothing was changed"):
            attempt()
    assert (tmp_path / "a").read_bytes() == b"ours"


def test_a_file_that_somebody_removed_is_no_obstacle(tmp_path: Path) -> None:
    manifest = Manifest.read(tmp_path / "state")
    manifest.carry_out([wanted(tmp_path / "a"), wanted(tmp_path / "b")], {})
    (tmp_path / "a").unlink()
    assert actions(manifest, wanted(tmp_path / "a")) == ["write", "remove"]
    assert manifest.take_back(list(manifest.files)) == [tmp_path / "b"]


def test_after_a_crash_remove_knows_every_file_and_install_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(name: str) -> None:
        if name == "harvester.written":
            raise KeyboardInterrupt

    Manifest.read(tmp_path / "state").carry_out([wanted(tmp_path / "a", b"old")], {})
    monkeypatch.setattr(failpoints, "reach", crash)
    with pytest.raises(KeyboardInterrupt):
        Manifest.read(tmp_path / "state").carry_out(
            [wanted(tmp_path / "a", b"new"), wanted(tmp_path / "b")], {}
        )
    monkeypatch.undo()
    left = Manifest.read(tmp_path / "state")
    assert actions(left, wanted(tmp_path / "a", b"new"), wanted(tmp_path / "b")) == ["keep", "keep"]
    assert left.take_back(list(left.files)) == [tmp_path / "a", tmp_path / "b"]


def test_a_list_that_is_damaged_is_told_and_nothing_is_changed(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"files": 3}')
    with pytest.raises(ConflictError, match="damaged"):
        Manifest.read(tmp_path)
    (tmp_path / FILE).write_text("{")
    with pytest.raises(ConflictError, match="damaged"):
        Manifest.read(tmp_path)


def test_folders_are_open_to_who_is_to_read_what_lies_in_them(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        Manifest.read(tmp_path / "state").carry_out([wanted(tmp_path / "lib" / "gpupool" / "a")], {})
    finally:
        os.umask(before)
    for folder in (tmp_path / "lib", tmp_path / "lib" / "gpupool"):
        assert folder.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "lib" / "gpupool" / "a").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    manifest = Manifest.read(tmp_path / "state")
    with pytest.raises(EnvironmentProblemError, match="cannot be written"):
        manifest.carry_out([wanted(tmp_path / "file" / "a")], {})
