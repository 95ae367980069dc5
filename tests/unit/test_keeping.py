"""Compiled kernels on disk are used again, and no damage to them or to their folder keeps an engine from starting."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numba.core import config
from numba.core.caching import FunctionCache

from full_disk import full_disk
from gpupool.pos import compiling
from gpupool.pos.compiling import kernel


def _twice(number: int) -> int:
    return 2 * number


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(vars(config), "CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def found(function: Callable[[int], int] = _twice) -> bool:
    """Start anew: tell whether the function was found compiled. It works either way."""
    dispatcher: Any = kernel(function)
    assert dispatcher(21) == 42
    return bool(dispatcher.stats.cache_hits)


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_was_compiled_once_is_found() -> None:
    assert [found(), found(), found()] == [False, True, True]


def test_damaged_files_are_compiled_anew(folder: Path) -> None:
    """As a power cut leaves them: empty, cut off, with a block of zeros, with something behind."""
    found()
    (path,) = kept(folder)
    whole = path.read_bytes()
    middle = len(whole) // 2
    zeros = whole[:middle] + bytes(64) + whole[middle + 64 :]
    for damaged in (b"", whole[:40], whole[:middle], whole + b"\0", zeros):
        path.write_bytes(damaged)
        assert [found(), found()] == [False, True]
        assert hashlib.sha256(path.read_bytes()[32:]).digest() == path.read_bytes()[:32]
    assert kept(folder) == [path]


def test_a_full_disk_costs_time_only(folder: Path) -> None:
    with full_disk():
        assert [found(), found()] == [False, False]
    assert kept(folder) == []
    assert [found(), found()] == [False, True]


def test_a_folder_that_cannot_be_made_costs_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])
    assert [found(), found()] == [False, False]


def test_a_folder_that_vanishes_is_made_again(folder: Path) -> None:
    found()
    (path,) = kept(folder)
    path.unlink()
    path.parent.rmdir()
    assert [found(), found()] == [False, True]


def test_a_change_of_any_source_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba itself looks at the file of the kernel only, not at those of its parts."""
    assert [found(), found()] == [False, True]
    monkeypatch.setattr(compiling, "_VERSION", "another")
    assert [found(), found()] == [False, True]
