"""What a workload is given: environment and command line."""

import sys
from pathlib import Path

import pytest

from gpupool.runtimes.process.environment import (
    LaunchFailedError,
    Surroundings,
    build_command,
    build_environment,
)
from gpupool.runtimes.process.marks import PLACEMENT, RUNS, runs_mark
from gpupool.runtimes.process.records import RunFolder
from workloads import order


def built(tmp_path: Path, **changes: object) -> dict[str, str]:
    around = Surroundings(runs=tmp_path / "runs", cache=tmp_path / "cache", host="127.0.0.1")
    wanted = order(("python", "-V"), placement_id="pl-a", **changes)
    return build_environment(wanted, RunFolder.of(around.runs, "pl-a"), around, 30005, "inst-1")


def test_without_a_gpu_no_gpu_is_visible(tmp_path: Path) -> None:
    assert built(tmp_path)["CUDA_VISIBLE_DEVICES"] == ""


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
    assert environment["NUMBA_CACHE_DIR"] == str(tmp_path / "cache" / "numba")
    assert environment["HF_HOME"] == str(tmp_path / "cache" / "models")


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
