"""Stock chia-blockchain 2.7.5 farms real plots through library, sidecar and server, and nothing of it is left after.

The plots hold one known proof each (`minted_plots`). `chia plots check` asks for challenges that it makes from
numbers; for these numbers they lead to the proofs. The one of `LOST` is one that the bundled decompressor cannot find
at C7, since two of its values fall into one bucket; ours can.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from chia_rs import AugSchemeMPL
from typer.testing import CliRunner

import chia_env
from gpupool.cli.harvester import app
from gpupool.harvester.processes import harvesters
from gpupool.harvester.sidecar import look
from mainnet import K32
from minted_plots import mint
from polling import eventually
from proxy_program import COMMAND, Program, program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # an environment of 200 MB is made, and Chia starts slowly
FOUND, LOST = 24, 46
START = {FOUND: 120713017, LOST: 276795868}
"""Proof -> the number whose SHA-256 begins as its challenge does."""
SUMMARY = re.compile(r"Found (\d+) valid plots")


@dataclass
class Farm:
    """A Chia of our own, with its folder."""

    venv: Path
    root: Path

    def chia(self, *words: str) -> str:
        """Run `chia …` to its end and return what it says."""
        done = chia_env.chia(*words, root=self.root, venv=self.venv, PYTHONDONTWRITEBYTECODE="1")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def ours(self, *words: str) -> tuple[int, str]:
        """Run `gpupool harvester …` and return its exit code and output."""
        own = {"GPUPOOL_HOME": str(self.root / "state"), "CHIA_ROOT": str(self.root / "chia")}
        result = CliRunner().invoke(app, words, env=own)
        return result.exit_code, f"{result.output}{result.exception or ''}"

    def check(self, proof: int) -> str:
        """Let Chia try its plots with five challenges, of which the first leads to ``proof``."""
        return self.chia("plots", "check", "-n", "5", "--challenge-start", str(START[proof]))

    def plots(self, proof: int, *levels: int) -> None:
        """Have plots with ``proof`` at ``levels``, and no others."""
        folder = self.root / "plots"
        for path in folder.iterdir():
            path.unlink()
        secret = AugSchemeMPL.key_gen(bytes(32))
        memo = bytes(secret.public_key()) * 2 + bytes(secret)
        for level in levels:
            mint(K32[proof], level, folder / f"plot-k32-c{level}.plot", memo)

    def picture(self) -> dict[str, str]:
        """Return a digest of each file of Chia's environment."""
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.venv.rglob("*")
            if path.is_file()
        }


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Farm:
    folder = tmp_path_factory.mktemp("farm")
    made = Farm(chia_env.copy(folder / "venv"), folder)
    made.chia("init")
    (folder / "plots").mkdir()
    made.chia("plots", "add", "-d", str(folder / "plots"))
    config = folder / "chia" / "config" / "config.yaml"
    text = config.read_text()
    assert "parallel_decompressor_count: 0" in text
    text = text.replace("parallel_decompressor_count: 0", "parallel_decompressor_count: 8")
    config.write_text(text.replace("start_rpc_server: true", "start_rpc_server: false"))
    return made


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[tuple[Program, str]]:
    """Run a real recompute server, and give its address."""
    environment = os.environ | {"GPUPOOL_HOME": str(folder / "server")}
    given = (
        "recompute",
        "serve",
        "--port",
        "0",
        "--threads",
        "2",
        "--cuda-devices",
        "0",
        "--opencl-devices",
        "0",
    )
    async with program(COMMAND, *given, env=environment) as started:
        await started.says("listening on", started.out)
        port = next(line.split()[-1] for line in started.out if "listening on" in line)
        yield started, f"127.0.0.1:{port}"
        started.process.terminate()
        await started.ended()


def answered(farm: Farm) -> int:
    """Return how many questions the servers have answered."""
    view = look(farm.root / "state" / "harvester" / "sidecar.sock")
    return sum(int(node["answered"]) for node in view.nodes)


async def test_chia_checks_plots_through_the_pool_and_is_as_before_afterwards(farm: Farm) -> None:
    before = farm.picture()
    async with server(farm.root) as (_, address):
        code, told = farm.ours(
            "install", "--chia", str(farm.venv), "--servers", address, "--fallback", "off", "--yes"
        )
        assert code == 0, told
        assert "chia-blockchain: 2.7.5" in told
        code, told = farm.ours("run")
        assert code == 0, told
        sidecar = farm.root / "state" / "harvester" / "sidecar.sock"
        await eventually(lambda: look(sidecar).ready, 120, "a server behind the sidecar")

        farm.plots(FOUND, 1, 3)
        told = await asyncio.to_thread(farm.check, FOUND)
        assert SUMMARY.findall(told) == ["2"], told
        assert answered(farm) >= 4

        farm.plots(LOST, 7)
        told = await asyncio.to_thread(farm.check, LOST)
        assert SUMMARY.findall(told) == ["1"], told
        assert look(sidecar).lost == {"quality": 0, "proof": 0, "fallbacks": 0}
        assert farm.ours("remove", "--yes")[0] == 0
    assert farm.picture() == before
    told = await asyncio.to_thread(farm.check, LOST)
    assert SUMMARY.findall(told) == ["0"], "the bundled decompressor alone loses this one"


async def test_status_sees_the_library_in_a_real_harvester_and_what_it_lost_without_servers(
    farm: Farm,
) -> None:
    sidecar = farm.root / "state" / "harvester" / "sidecar.sock"
    given = ("install", "--chia", str(farm.venv), "--fallback", "off", "--timeout-ms", "3000", "--yes")
    async with server(farm.root) as (_, address):
        code, told = farm.ours(*given, "--servers", address)
        assert code == 0, told
        assert farm.ours("run")[0] == 0
        await eventually(lambda: look(sidecar).ready, 120, "a server behind the sidecar")
        process = await asyncio.create_subprocess_exec(
            farm.venv / "bin" / "chia_harvester",
            env=chia_env.variables(farm.root) | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await eventually(
                lambda: any(one.pid == process.pid and one.bundled for one in harvesters(farm.venv)),
                120,
                "a harvester that farms",
            )
            code, told = farm.ours("status")
            assert code == 0, told
            assert f"harvester {process.pid}: has the library" in told
        finally:
            process.kill()
            await process.wait()
    farm.plots(FOUND, 1)
    told = await asyncio.to_thread(farm.check, FOUND)
    assert SUMMARY.findall(told) == ["0"], told
    assert look(sidecar).lost["quality"] >= 1, "Chia went on with a wrong quality, and nobody else knows"
    code, told = farm.ours("status")
    assert code == 5
    assert ", 0 by the bundled library, " in told
    assert " quality C1 " in told, "the last failures, from the library's own log"
    assert farm.ours("remove", "--yes")[0] == 0
