"""Which Chia is on a machine, what its configuration allows, and which of its processes have the library."""

import os
from pathlib import Path

import pytest

from fake_chia import CONFIG, make_environment, make_root
from gpupool.cli.checks.finding import Verdict
from gpupool.cli.checks.harvester import (
    check_config,
    check_fits,
    check_processes,
    check_sidecar,
    check_versions,
)
from gpupool.core.errors import EnvironmentProblemError, InvalidInputError, NotFoundError
from gpupool.harvester.chia_config import MOST_BYTES, HarvesterConfig, chia_root, read_config
from gpupool.harvester.chia_env import ChiaEnvironment, Kind, find
from gpupool.harvester.processes import HarvesterProcess, daemons_without, harvesters
from gpupool.harvester.sidecar import SidecarView

ELF = b"\x7fELF\x02\x01\x01"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chia-blockchain") / "venv"
    make_environment(folder)
    return folder


@pytest.mark.parametrize("named", ["", "..", "bin/chia"])
def test_an_environment_is_found_by_its_folder_its_clone_and_its_program(
    environment: Path, named: str
) -> None:
    found = find(environment / named)
    assert (found.kind, found.chia, found.chiapos, found.bundled) == (Kind.VENV, "2.7.5", "2.0.12", True)
    assert found.site_packages is not None
    assert found.site_packages.samefile(next(environment.glob("lib/python3.*/site-packages")))
    assert (found.programs / "chia").exists()


def test_a_link_to_the_program_leads_to_its_environment(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "chia").symlink_to(environment / "bin" / "chia")
    assert find(tmp_path / "chia").root == environment


def test_without_a_name_the_active_environment_and_the_search_path_are_looked_at(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(environment))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find(None).root == environment
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setenv("PATH", str(environment / "bin"))
    assert find(None).root == environment
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("gpupool.harvester.chia_env._USUAL", ())
    with pytest.raises(NotFoundError, match="No chia-blockchain was found"):
        find(None)


@pytest.mark.parametrize("place", ["", "resources/app.asar.unpacked/daemon"])
def test_a_frozen_program_is_told_from_an_environment(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "opt" / place
    (folder / "_internal" / "chiapos.libs").mkdir(parents=True)
    (folder / "_internal" / "chiapos.libs" / "libbladebit_harvester-1.so").write_bytes(ELF)
    (folder / "_internal" / "chia_blockchain-2.7.5.dist-info").mkdir()
    (folder / "chia").write_bytes(ELF)
    found = find(tmp_path / "opt")
    assert (found.kind, found.chia, found.chiapos, found.bundled) == (Kind.FROZEN, "2.7.5", None, True)
    assert found.site_packages is None


def test_other_environments_and_folders_are_no_chia(tmp_path: Path) -> None:
    (tmp_path / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").touch()
    (tmp_path / "chia").write_text("#!/bin/sh\n")
    for given in (tmp_path, tmp_path / "nowhere", tmp_path / "chia"):
        with pytest.raises(NotFoundError, match="no chia-blockchain at"):
            find(given)


def test_versions_and_fit_are_judged() -> None:
    tried = ChiaEnvironment(kind=Kind.VENV, root=Path("/x"), chia="2.7.5", chiapos="2.0.12", bundled=True)
    assert [finding.verdict for finding in check_versions(tried)] == [Verdict.GOOD, Verdict.GOOD]
    assert check_fits(tried).verdict is Verdict.GOOD
    newer = ChiaEnvironment(kind=Kind.VENV, root=Path("/x"), chia="3.0.0", chiapos="2.1.0", bundled=True)
    assert [finding.verdict for finding in check_versions(newer)] == [Verdict.WARN, Verdict.WARN]
    assert check_fits(newer).verdict is Verdict.FAIL
    old = ChiaEnvironment(kind=Kind.VENV, root=Path("/x"), chia="1.8.2", chiapos="1.0.11")
    assert check_fits(old).verdict is Verdict.FAIL
    frozen = ChiaEnvironment(kind=Kind.FROZEN, root=Path("/x"))
    assert check_fits(frozen).verdict is Verdict.WARN
    assert [finding.verdict for finding in check_versions(frozen)] == [Verdict.WARN, Verdict.WARN]


def test_the_configuration_is_read_with_anchors_and_defaults(tmp_path: Path) -> None:
    config = read_config(make_root(tmp_path, count=7))
    assert (config.parallel_decompressor_count, config.num_threads, config.owner) == (7, 30, os.getuid())
    (tmp_path / "config" / "config.yaml").write_text("harvester: {num_threads: null}\n")
    assert read_config(tmp_path).num_threads == 30


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("harvester: [1", InvalidInputError),
        ("farmer: {}", InvalidInputError),
        ("harvester: {num_threads: many}", InvalidInputError),
        ("- 1", InvalidInputError),
        ("x: " + "y" * MOST_BYTES, InvalidInputError),
        (None, NotFoundError),
    ],
)
def test_a_configuration_that_is_none_is_told(
    tmp_path: Path, text: str | None, error: type[Exception]
) -> None:
    (tmp_path / "config").mkdir()
    if text is not None:
        (tmp_path / "config" / "config.yaml").write_text(text)
    with pytest.raises(error):
        read_config(tmp_path)


def test_chias_folder_is_as_named_or_its_variable_or_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/farmer")
    monkeypatch.delenv("CHIA_ROOT", raising=False)
    assert chia_root(None) == Path("/home/farmer/.chia/mainnet")
    monkeypatch.setenv("CHIA_ROOT", "/data/chia")
    assert chia_root(None) == Path("/data/chia")
    assert chia_root(Path("/x")) == Path("/x")


def verdicts(**values: object) -> dict[str, Verdict]:
    given: dict[str, object] = {"path": Path("/c"), "owner": 0, "parallel_decompressor_count": 24} | values
    return {f.name: f.verdict for f in check_config(HarvesterConfig(**given))}  # type: ignore[arg-type]


def test_what_the_configuration_allows_is_judged() -> None:
    count = "parallel_decompressor_count"
    assert verdicts() == {count: Verdict.GOOD}
    assert verdicts(parallel_decompressor_count=0) == {count: Verdict.FAIL}
    assert verdicts(parallel_decompressor_count=2) == {count: Verdict.WARN}
    assert verdicts(max_compression_level_allowed=5)["max_compression_level_allowed"] is Verdict.WARN
    assert verdicts(use_gpu_harvesting=True)["use_gpu_harvesting"] is Verdict.WARN
    assert verdicts(use_gpu_harvesting=True, enforce_gpu_index=True)["use_gpu_harvesting"] is Verdict.FAIL
    assert verdicts(decompressor_timeout=5)["decompressor_timeout"] is Verdict.WARN


def process(proc: Path, pid: int, cmdline: bytes, maps: str | None = "", environ: bytes = b"") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(cmdline)
    (folder / "environ").write_bytes(environ)
    if maps is not None:
        (folder / "maps").write_text(maps)


OURS = "7f0000000000-7f0000001000 r-xp 00000000 08:01 77    /state/my pool/libgpupool_harvester.so\n"
BUNDLED = "7f1000000000-7f1000001000 r-xp 00000000 08:01 78    /venv/libbladebit_harvester-1.so\n"


def test_harvesters_are_found_by_name_and_what_is_loaded_by_the_kernels_word(tmp_path: Path) -> None:
    process(tmp_path, 10, b"chia_harvester\0\0\0", OURS + BUNDLED)
    process(tmp_path, 11, b"/venv/bin/python\0-u\0/venv/bin/chia_harvester\0", BUNDLED)
    process(tmp_path, 12, b"/opt/chia/start_harvester\0", None)
    process(tmp_path, 13, b"grep\0chia_harvester\0", OURS)
    process(tmp_path, 14, b"", "")
    (tmp_path / "self").mkdir()
    looked = harvesters(Path("/venv"), tmp_path)
    found = {one.pid: (one.library, one.bundled, one.readable, one.ours) for one in looked}
    assert found == {
        10: ("/state/my pool/libgpupool_harvester.so", True, True, True),
        11: (None, True, True, True),
        12: (None, False, False, False),
    }


def test_daemons_without_the_variables_are_found(tmp_path: Path) -> None:
    process(tmp_path, 10, b"chia_daemon\0", environ=b"A=1\0GPUPOOL_HARVESTER_SIDECAR=unix:/x\0")
    process(tmp_path, 11, b"chia_daemon\0", environ=b"A=1\0")
    process(tmp_path, 12, b"/venv/bin/python\0", environ=b"A=1\0")
    assert daemons_without("GPUPOOL_HARVESTER_SIDECAR", tmp_path) == [11]


def test_a_harvester_without_the_library_fails_and_an_older_library_is_told() -> None:
    def judged(**values: object) -> Verdict:
        given: dict[str, object] = {"pid": 1, "user": 0, "readable": True, "ours": True} | values
        (finding,) = check_processes(
            [HarvesterProcess(**given)],  # type: ignore[arg-type]
            {"library": "/new.so", "chia": "/venv"},
            "restart",
        )
        return finding.verdict

    assert judged(library="/new.so") is Verdict.GOOD
    assert judged(library="/new.so (deleted)") is Verdict.WARN
    assert judged() is Verdict.FAIL
    assert judged(readable=False) is Verdict.WARN
    (none,) = check_processes([], {"library": "/new.so", "chia": "/venv"}, "restart")
    assert none.verdict is Verdict.FAIL
    stranger = HarvesterProcess(pid=2, user=0, ours=False, readable=True)
    both = check_processes([stranger], {"library": "/new.so", "chia": "/venv"}, "restart")
    assert [finding.verdict for finding in both] == [Verdict.FAIL, Verdict.WARN]


def test_the_sidecar_is_judged_by_what_stands_behind_it_and_what_was_lost() -> None:
    def judged(view: SidecarView) -> dict[str, Verdict]:
        return {f.name: f.verdict for f in check_sidecar(view, Path("/s"), "start it")}

    node = {"name": "a:1", "trouble": None, "refused": None}
    assert judged(SidecarView(answers=False, why="gone")) == {"sidecar": Verdict.FAIL}
    well = SidecarView(answers=True, ready=True, version="1", nodes=[node])
    assert judged(well) == {"sidecar": Verdict.GOOD, "look-ups": Verdict.GOOD}
    ill = SidecarView(answers=True, version="1", nodes=[node | {"trouble": "refused"}], lost={"quality": 2})
    assert judged(ill) == {"sidecar": Verdict.FAIL, "server a:1": Verdict.WARN, "look-ups": Verdict.WARN}


def test_a_configuration_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "config" / "config.yaml").mkdir(parents=True)
    with pytest.raises(EnvironmentProblemError, match="cannot be read"):
        read_config(tmp_path)
    assert "num_threads: 30" in CONFIG
