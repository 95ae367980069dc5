"""`gpupool harvester` from plan to removal, with a harvester that is one to the kernel, and a real sidecar."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fake_chia import make_environment, make_root, running
from gpupool.cli.harvester import app
from gpupool.core.errors import GpupoolError
from gpupool.harvester.sidecar import look
from polling import eventually
from proxy_stage import HttpNode, nodes


@dataclass
class Stage:
    """A machine with a Chia and nothing of ours."""

    folder: Path
    site: Path

    @property
    def state(self) -> Path:
        return self.folder / "state" / "harvester"

    @property
    def socket(self) -> Path:
        return self.state / "sidecar.sock"

    @property
    def harvester(self) -> Path:
        return self.folder / "venv" / "bin" / "chia_harvester"

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run `gpupool harvester …` in this process and return exit code, output and errors."""
        own = {"GPUPOOL_HOME": str(self.folder / "state"), "CHIA_ROOT": "/nowhere"}
        if words[0] == "install" and "--chia-root" not in words:
            words = (*words, "--chia-root", str(self.folder / "root"))
        result = CliRunner().invoke(app, words, env=own)
        if isinstance(result.exception, GpupoolError):
            error = result.exception
            return error.exit_code, result.stdout, f"{error.message} {error.remedy}"
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    def install(self, server: str, *more: str) -> tuple[int, str, str]:
        return self.run("install", "--chia", str(self.folder / "venv"), "--servers", server, *more)

    def picture(self) -> dict[str, bytes | None]:
        """Return what lies in Chia's environment and its own folder, byte for byte."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes() if path.is_file() else None
            for top in ("venv", "root")
            for path in (self.folder / top).rglob("*")
            if "__pycache__" not in path.parts
        }


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, make_environment(tmp_path / "venv"))
    make_root(tmp_path / "root")
    yield made
    if made.state.exists():
        made.run("remove", "--yes")


async def test_from_plan_to_removal(stage: Stage) -> None:
    before, node = stage.picture(), HttpNode()
    async with nodes(node):
        code, out, _ = stage.install(node.address)
        assert code == 5
        assert "Nothing was changed" in out
        assert stage.picture() == before
        assert not stage.state.exists()

        code, out, err = stage.install(node.address, "--yes")
        assert code == 0, err
        assert "chia start harvester -r" in out
        hook = stage.site / "gpupool-harvester.pth"
        assert stage.picture() == before | {str(hook.relative_to(stage.folder)): hook.read_bytes()}

        code, out, _ = stage.run("status", "--json")
        found = {row["name"]: row["verdict"] for row in json.loads(out)["findings"]}
        assert code == 5
        assert (found["installation"], found["harvester"], found["sidecar"]) == ("pass", "fail", "fail")

        code, _, err = stage.run("run")
        assert code == 0, err
        assert "is up" in err
        with running(stage.harvester) as process:
            await eventually(lambda: look(stage.socket).ready, 60, "a sidecar with a server")
            code, out, err = stage.run("status")
            assert code == 0, out + err
            assert f"harvester {process.pid}: has the library" in out
            assert "1 of 1 servers usable" in out
            assert "0 answered by servers, 0 by the bundled library, 0 lost" in out

            code, out, _ = stage.run("remove", "--yes")
            assert code == 5
            assert f"pid {process.pid}" in out
            assert stage.picture() == before
            assert "half removed" in stage.run("status")[1]
            assert stage.socket.is_socket(), "who still asks must not lose a look-up"
        code, out, err = stage.run("remove", "--yes")
        assert code == 0, out + err
    assert stage.picture() == before
    assert not stage.state.exists()
    for command in ("status", "env", "run", "remove"):
        assert stage.run(command)[0] == 4


def test_a_second_installation_changes_nothing_or_only_what_is_asked(stage: Stage) -> None:
    code, _, err = stage.install("192.0.2.1", "--yes")
    assert code == 0, err
    before = stage.picture()
    code, out, _ = stage.run("install", "--chia", str(stage.folder / "venv"), "--yes", "--json")
    told = json.loads(out)
    assert (code, told["done"], told["changed"]) == (0, True, False)
    assert stage.picture() == before
    code, out, _ = stage.install("192.0.2.2", "--fallback", "off", "--json")
    assert (code, json.loads(out)["done"]) == (5, False)
    code, _, _ = stage.install("192.0.2.2", "--fallback", "off", "--alert-command", "/bin/true", "--yes")
    assert code == 0
    code, out, _ = stage.run(
        "install", "--chia", str(stage.folder / "venv"), "--fallback", "off", "--json", "--yes"
    )
    assert (code, json.loads(out)["changed"]) == (0, False), "servers and alert are remembered"
    code, out, _ = stage.run("env")
    assert "export GPUPOOL_HARVESTER_FALLBACK=off" in out
    code, out, _ = stage.run("env", "--json")
    assert json.loads(out)["GPUPOOL_HARVESTER_SIDECAR"] == f"unix:{stage.socket}"


async def test_a_sidecar_with_other_servers_gives_way_to_one_with_those_installed_last(stage: Stage) -> None:
    first, second = HttpNode(), HttpNode()
    async with nodes(first, second):
        stage.install(first.address, "--yes")
        assert "is up" in stage.run("run")[2]
        code, out, err = stage.install(second.address, "--yes")
        assert code == 0, err
        assert f"Sidecar: -n {second.address} (gpupool harvester run starts it" in out
        assert "Installed. Then" in out
        assert "is up" in stage.run("run")[2]
        assert [node["name"] for node in look(stage.socket).nodes] == [second.address]
        assert "runs already" in stage.run("run")[2]


def test_a_file_that_somebody_has_changed_stays(stage: Stage) -> None:
    stage.install("192.0.2.1", "--yes")
    hook = stage.site / "gpupool-harvester.pth"
    mine = hook.read_bytes()
    hook.write_bytes(mine + b"# edited\n")
    for command in (("remove", "--yes"), ("install", "--chia", str(stage.folder / "venv"), "--yes")):
        code, _, err = stage.run(*command)
        assert code == 5
        assert "Somebody else has written or changed" in err
    assert hook.read_bytes() == mine + b"# edited\n"
    hook.write_bytes(mine)


async def test_a_command_runs_with_the_variables_and_a_sidecar_that_outlives_it(stage: Stage) -> None:
    node = HttpNode()
    async with nodes(node):
        stage.install(node.address, "--method", "daemon", "--yes")
        assert not (stage.site / "gpupool-harvester.pth").exists()
        words = (
            "import os; print(os.environ['LD_PRELOAD'].split(':')[0]); "
            "print('libgpupool_harvester' in open('/proc/self/maps').read()); raise SystemExit(7)"
        )
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-P", "-m", "gpupool", "harvester", "run", "--", sys.executable, "-c", words],
            env=os.environ | {"GPUPOOL_HOME": str(stage.folder / "state")},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        library = str(stage.state / "libgpupool_harvester.so")
        assert (done.returncode, done.stdout.split()) == (7, [library, "True"]), done.stderr
        code, _, err = stage.run("run")
        assert code == 0
        assert "runs already" in err
        code, _, err = stage.run("run", "--", "no-such-program")
        assert code == 4
        assert "no-such-program cannot be run" in err


def test_with_systemd_a_unit_is_told_and_the_sidecar_has_units_of_its_own(stage: Stage) -> None:
    units = stage.folder / "units"
    given = ("--method", "systemd", "--unit", "chia-harvester.service", "--units", str(units), "--yes")
    code, out, err = stage.install("192.0.2.1", *given)
    assert code == 0, err
    assert "restart chia-harvester.service" in out
    assert "restart gpupool-sidecar.service" not in out
    code, out, err = stage.install("192.0.2.1", *given)
    assert code == 0, err
    assert "restart gpupool-sidecar.service" in out, "one that runs already does not read its unit again"
    dropin = (units / "chia-harvester.service.d" / "50-gpupool.conf").read_text()
    assert f"Environment=LD_PRELOAD={stage.state / 'libgpupool_harvester.so'}" in dropin
    service = (units / "gpupool-sidecar.service").read_text()
    assert f"recompute proxy -n 192.0.2.1 --unix {stage.socket}" in service
    assert f"ListenStream={stage.socket}" in (units / "gpupool-sidecar.socket").read_text()
    wants = units / "sockets.target.wants"
    wants.mkdir()
    (wants / "gpupool-sidecar.socket").symlink_to(units / "gpupool-sidecar.socket")
    code, out, _ = stage.run("remove", "--yes")
    assert code == 5
    assert "disable --now gpupool-sidecar.socket" in out
    (wants / "gpupool-sidecar.socket").unlink()
    wants.rmdir()
    code, out, _ = stage.run("remove", "--yes")
    assert code == 0, out
    assert not units.exists()


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (("--servers", "http://x"), 2, "is a URL"),
        ((), 2, "no servers to ask"),
        (("--servers", "x", "--fallback", "sometimes"), 2, "off, away or always"),
        (("--servers", "x", "--method", "magic"), 2, "pth, systemd or daemon"),
        (("--servers", "x", "--timeout-ms", "20000"), 2, "100 to 19000"),
        (("--servers", "x", "--method", "systemd"), 2, "--unit"),
        (("--servers", "x", "--socket", "/" + "x" * 120), 2, "at most 107"),
        (("--servers", "x", "--chia-root", "/nowhere"), 4, "no configuration of Chia"),
    ],
)
def test_what_cannot_be_is_refused_with_words(
    stage: Stage, given: tuple[str, ...], code: int, words: str
) -> None:
    told, _, err = stage.run("install", "--chia", str(stage.folder / "venv"), *given)
    assert told == code
    assert words in err
    assert not stage.state.exists()


def test_an_old_chiapos_and_a_missing_chia_are_refused(stage: Stage) -> None:
    (stage.site / "chiapos-2.0.12.dist-info").rename(stage.site / "chiapos-1.0.11.dist-info")
    code, _, err = stage.install("x", "--yes")
    assert code == 2
    assert "Only chiapos 2.0" in err
    code, _, err = stage.run("install", "--chia", str(stage.folder / "root"), "--servers", "x")
    assert code == 4
    assert stage.run("status")[0] == 4
