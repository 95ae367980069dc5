"""The harvester's library is built where it can be, and whoever cannot have it is told why."""

import ctypes
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import pytest

from gpupool.core.errors import UnsupportedError
from gpupool.harvester import building
from gpupool.harvester.building import CompileError, NoCompilerError, compile_library, shim_library

SEVEN = {
    "grCreateContext", "grDestroyContext", "grPreallocateForCompressionLevel", "grFetchProofForChallenge",
    "grGetFetchQualitiesXPair", "grHasGpuDecompressor", "grGetCompressionInfo",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


def test_it_is_compiled_once_and_shows_seven_names(folder: Path) -> None:
    path = shim_library(folder)
    assert re.fullmatch(r"libgpupool_harvester-[0-9a-f]{12}\.so", path.name)
    made = path.stat().st_mtime_ns
    assert (shim_library(folder), path.stat().st_mtime_ns) == (path, made)
    assert list(folder.iterdir()) == [path]
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True
    )
    assert {line.split()[-1] for line in shown.stdout.splitlines()} == SEVEN
    ctypes.CDLL(str(path))


def test_it_leans_on_the_c_library_alone_and_is_hardened(folder: Path) -> None:
    told = subprocess.run(
        ["readelf", "-dlW", str(shim_library(folder))], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*?)\.so", told))
    assert needed <= {"libc", "libdl", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert re.search(r"FLAGS_1\).*NOW.*NODELETE", told)
    assert re.search(r"GNU_STACK\s.*RW\s", told)
    assert "GNU_RELRO" in told


def test_other_sources_make_another_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = building.sources()[0].parent
    changed = tmp_path / "native"
    shutil.copytree(here, changed)
    (changed / "shim.h").write_text((changed / "shim.h").read_text() + "\n")
    before = shim_library(folder)
    monkeypatch.setattr(building, "sources", lambda: sorted(changed.glob("*.c")))
    assert shim_library(folder) != before


def test_a_library_that_the_wheel_carries_is_taken_where_it_works(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "shipped.so"
    shutil.copy(shim_library(folder), shipped)
    monkeypatch.setattr(building, "shipped_library", lambda: shipped)
    assert shim_library(tmp_path / "unused") == shipped
    assert not (tmp_path / "unused").exists()
    broken = tmp_path / "broken.so"
    broken.write_bytes(shipped.read_bytes()[:100])
    monkeypatch.setattr(building, "shipped_library", lambda: broken)
    assert shim_library(tmp_path / "used").parent == tmp_path / "used"


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCompilerError) as told:
        shim_library(tmp_path)
    assert "apt install gcc" in told.value.remedy


@pytest.mark.parametrize("says", ["shim.c:3:10: fatal error: link.h: No such file", ""])
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text(f"#!/bin/sh\necho 'In file included from x.c:'  >&2\necho '{says}' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(compiler.parent))
    with pytest.raises(CompileError) as told:
        shim_library(tmp_path / "library")
    assert (says or "In file included") in told.value.message
    assert list((tmp_path / "library").iterdir()) == []


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompileError):
        compile_library(tmp_path / "missing" / "shim.so")


@pytest.mark.parametrize(("system", "c_library"), [("linux", "musl"), ("darwin", ""), ("win32", "")])
def test_other_systems_are_told_that_it_does_not_work_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, c_library: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "libc_ver", lambda: (c_library, "1"))
    with pytest.raises(UnsupportedError, match="Linux with glibc only"):
        shim_library(tmp_path)


# -- wheels --------------------------------------------------------------------------------------------------

T = TypeVar("T")


class Interface(Generic[T]):
    """The packaging tool's, which is there only while a wheel is built."""

    def __init__(self, root: str) -> None:
        self.root = root


def carried(checkout: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> dict[str, Any]:
    name = "hatchling.builders.hooks.plugin.interface"
    stand_in = ModuleType(name)
    monkeypatch.setattr(stand_in, "BuildHookInterface", Interface, raising=False)
    monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("wheel_hook", checkout / "native" / "wheel_hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    module.ShimHook(str(checkout)).initialize(version, data)
    return data


def test_a_wheel_carries_the_sources(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUPOOL_WHEEL_SHIM", raising=False)
    data = carried(checkout, monkeypatch, "standard")
    native = checkout / "native"
    names = {path.name for path in (*native.glob("*.c"), *native.glob("*.h"))}
    assert set(data["force_include"].values()) == {f"gpupool/harvester/native/{name}" for name in names}
    assert data["pure_python"]
    assert carried(checkout, monkeypatch, "editable")["force_include"] == {}


def test_a_wheel_of_one_machine_carries_the_library_and_says_so(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(checkout / "native", tmp_path / "native")
    monkeypatch.setenv("GPUPOOL_WHEEL_SHIM", "1")
    data = carried(tmp_path, monkeypatch, "standard")
    built = tmp_path / "build" / building.library_name()
    assert built.is_file()
    assert data["force_include"][str(built)] == f"gpupool/harvester/native/{built.name}"
    assert data["tag"] == f"py3-none-linux_{platform.machine()}"
    assert not data["pure_python"]


@pytest.mark.slow
def test_a_wheel_of_one_python_carries_the_compiled_proxy(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("native", "src", "scripts"):
        shutil.copytree(checkout / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.delenv("GPUPOOL_WHEEL_SHIM", raising=False)
    monkeypatch.setenv("GPUPOOL_WHEEL_COMPILED", "1")
    data = carried(tmp_path, monkeypatch, "standard")
    inside = set(data["force_include"].values())
    assert "gpupool/_compiled/digest" in inside
    assert any(name.startswith("gpupool/_compiled/gpupool/balancing/pool.") for name in inside)
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert data["tag"] == f"{version}-{version}-linux_{platform.machine()}"
