"""What a workload is given: environment and command line."""

import sys
from pathlib import Path

import pytest

from gpupool.runtimes.process.confinement import Confinement, Offer, Wall
from gpupool.runtimes.process.environment import (
    LaunchFailedError,
    Surroundings,
    build_command,
    build_environment,
)
from gpupool.runtimes.process.marks import PLACEMENT, RUNS, runs_mark
from gpupool.runtimes.process.records import RunFolder
from workloads import order


def built(tmp_path: Path, command: tuple[str, ...] = ("python", "-V"), **changes: object) -> dict[str, str]:
    around = surroundings(tmp_path)
    wanted = order(command, placement_id="pl-a", **changes)
    return build_environment(wanted, RunFolder.of(around.runs, "pl-a"), around, 30005, "inst-1", 61999)


def surroundings(tmp_path: Path) -> Surroundings:
    wall = Confinement(offer=Offer(Wall.FOLDERS, "tested"), protected=tmp_path)
    return Surroundings(runs=tmp_path / "runs", cache=tmp_path / "cache", host="127.0.0.1", confinement=wall)


def test_only_our_own_server_over_tls_gets_this_nodes_identity(tmp_path: Path) -> None:
    folder = tmp_path / "keys" / "recompute"
    folder.mkdir(parents=True)
    for name in ("tls.pem", "tls.key", "tokens"):
        (folder / name).touch()
    ours = ("python", "-m", "gpupool", "recompute", "serve", "--port", "{port}")
    environment = built(tmp_path, ours, tls=True)
    assert environment["GPUPOOL_RECOMPUTE_TLS_CERT"] == str(folder / "tls.pem")
    assert environment["GPUPOOL_RECOMPUTE_TLS_KEY"] == str(folder / "tls.key")
    assert environment["GPUPOOL_RECOMPUTE_TOKEN_FILE"] == str(folder / "tokens")
    assert "GPUPOOL_RECOMPUTE_CLIENT_CA" not in environment
    chosen = built(tmp_path, ours, tls=True, env={"GPUPOOL_RECOMPUTE_TOKEN_FILE": "/mine"})
    assert chosen["GPUPOOL_RECOMPUTE_TOKEN_FILE"] == "/mine"
    for command, changes in (
        (ours, {"tls": False}),
        (("python", "-m", "other"), {"tls": True}),
        (ours, {"tls": True, "env": {"PYTHONPATH": "/code"}}),
    ):
        assert str(folder / "tls.key") not in built(tmp_path, command, **changes).values()
        assert surroundings(tmp_path).identity(order(command, **changes)) == ()


def test_without_a_gpu_no_gpu_is_visible(tmp_path: Path) -> None:
    assert built(tmp_path)["CUDA_VISIBLE_DEVICES"] == ""


def test_our_recompute_server_is_kept_off_cards_that_it_has_no_claim_on(tmp_path: Path) -> None:
    name, ours = "CHIAPOS_MAX_GPU_DEVICES", ("python", "-m", "gpupool", "recompute", "serve")
    assert built(tmp_path, ours)[name] == "0"
    assert built(tmp_path, ours, env={name: "1"})[name] == "1"
    assert name not in built(tmp_path, ours, gpu_uuids=("GPU-a",))
    assert name not in built(tmp_path, (*ours, "--external", "/bin/theirs"))
    assert name not in built(tmp_path)


def test_gpus_are_named_by_uuid_and_by_index_only_without_one(tmp_path: Path) -> None:
    both = built(tmp_path, gpu_indices=(0, 2), gpu_uuids=("GPU-a", "GPU-b"))
    assert both["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert built(tmp_path, gpu_indices=(0, 2))["CUDA_VISIBLE_DEVICES"] == "0,2"


@pytest.mark.parametrize("name", ["PORT", "HOST", "HOME", "TMPDIR", "GPUPOOL_INSTANCE_ID", PLACEMENT, RUNS])
def test_a_spec_cannot_overrule_what_the_node_decides(tmp_path: Path, name: str) -> None:
    assert built(tmp_path, env={name: "mine"})[name] == built(tmp_path)[name]


def test_a_spec_may_choose_the_rest(tmp_path: Path) -> None:
    environment = built(tmp_path, env={"LANG": "de_DE.UTF-8", "HF_TOKEN": "given"})
    assert environment["LANG"] == "de_DE.UTF-8"
    assert environment["HF_TOKEN"] == "given"


def test_nothing_is_inherited_but_where_code_and_libraries_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GPUPOOL_HOME", "GPUPOOL_JOIN_TOKEN_FILE", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "inherited")
    monkeypatch.setenv("PYTHONPATH", "/code")
    environment = built(tmp_path)
    assert "inherited" not in environment.values()
    assert environment["PYTHONPATH"] == "/code"


def test_the_executable_s_own_folder_comes_first(tmp_path: Path) -> None:
    environment = built(tmp_path)
    assert environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert environment[RUNS] == runs_mark(tmp_path / "runs")
    assert environment["GPUPOOL_MODEL_CACHE"] == str(tmp_path / "cache" / "models")


OURS = ("python", "-m", "gpupool", "recompute", "serve", "--port", "{port}")


def test_compiled_code_is_shared_among_our_own_servers_only(tmp_path: Path) -> None:
    home = tmp_path / "runs" / "pl-a" / "home"
    assert built(tmp_path)["NUMBA_CACHE_DIR"] == str(home / ".cache" / "numba")
    assert built(tmp_path)["HF_HOME"] == str(home / ".cache" / "huggingface")
    shared = str(tmp_path / "cache" / "numba-61999")
    assert built(tmp_path, command=OURS)["NUMBA_CACHE_DIR"] == shared
    assert built(tmp_path, command=OURS, env={"CHIAPOS_MAX_CORES": "2"})["NUMBA_CACHE_DIR"] == shared
    without_a_user = build_environment(
        order(OURS), RunFolder.of(tmp_path / "runs", "pl-a"), surroundings(tmp_path), 30005, "inst-1"
    )
    assert without_a_user["NUMBA_CACHE_DIR"] == str(tmp_path / "cache" / "numba")


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "NUMBA_CACHE_DIR", "PATH"])
def test_one_of_ours_that_is_told_to_load_other_code_is_not_ours(tmp_path: Path, name: str) -> None:
    environment = built(tmp_path, command=OURS, env={name: "/elsewhere"})
    assert environment["NUMBA_CACHE_DIR"].startswith(str(tmp_path / "runs" / "pl-a"))


def test_placeholders_are_filled_in_and_other_braces_stay() -> None:
    wanted = order(("python", "--port={port}", "{host}:{port}", '{"json": {}}'))
    command = build_command(wanted, {"PATH": ""}, "127.0.0.1", 30001)
    assert command == (sys.executable, "--port=30001", "127.0.0.1:30001", '{"json": {}}')


def test_an_executable_is_looked_up_in_the_workload_s_path(tmp_path: Path) -> None:
    program = tmp_path / "serve"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert build_command(order(("serve", "x")), {"PATH": str(tmp_path)}, "h", 1) == (str(program), "x")
    with pytest.raises(LaunchFailedError, match="'serve' is not on this machine"):
        build_command(order(("serve",)), {"PATH": ""}, "h", 1)
