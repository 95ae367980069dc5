"""A stock farmer of chia-blockchain has its partial proofs solved by the pool, while two of three workers are killed."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import chia_env
from gpupool.contracts.recompute import SolutionRequest
from gpupool.recompute.solver_front.attaching import Attachment
from gpupool.recompute.solver_front.farmer_rpc import FarmerRpc, rpc_context
from polling import eventually
from proxy_program import COMMAND, Program, program, running
from solver_stage import WorkerDouble, stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PROGRAM = Path(__file__).parent.parent / "chia_farmer_program.py"
K, STRENGTH, PROOFS = 20, 4, 40


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def farmers_library(folder: Path) -> Path:
    """A folder that lends Chia's own chia_rs, of the farmer's release, to programs of ours."""
    folder.mkdir()
    packages = next((chia_env.environment() / "lib").glob("python3*")) / "site-packages"
    for found in packages.glob("chia_rs*"):
        (folder / found.name).symlink_to(found)
    return folder


class Farm:
    """A folder with everything of one test, and the programs in it."""

    def __init__(self, folder: Path, programs: AsyncExitStack) -> None:
        self.folder, self._programs = folder, programs
        self.ports = free_port(), free_port()
        own = Path(__file__).parent.parent.parent / "src"
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(farmers_library(folder / "library")), str(own)]),
            "GPUPOOL_HOME": str(folder / "home"),
        }

    async def command(self, *arguments: str) -> Program:
        return await self._programs.enter_async_context(program(COMMAND, *arguments, env=self.environment))

    async def worker(self) -> tuple[Program, int]:
        started = await self.command("recompute", "serve", "-p", "0", "-r", "1")
        await started.listening()
        line = next(line for line in started.out if "listening" in line)
        return started, int(line.rsplit(" ", 1)[1])


class Farmer:
    """The farmer's program."""

    def __init__(self, started: Program) -> None:
        self.program = started

    def ask(self, first: int, last: int) -> None:
        assert self.program.process.stdin is not None
        self.program.process.stdin.write(f"ask {first} {last}\n".encode())

    @property
    def proofs(self) -> dict[str, bool]:
        """Whether each proof that came is one."""
        told = [json.loads(line) for line in self.program.out if line.startswith("{")]
        return {line["proof"]: line["valid"] for line in told if "proof" in line}

    async def has(self, count: int) -> None:
        await eventually(lambda: len(self.proofs) >= count, 60, f"{count} proofs")


@asynccontextmanager
async def farmer(folder: Path, ports: tuple[int, int], how: str = "repaired") -> AsyncIterator[Farmer]:
    """Run a farmer with its ports for peers and for its RPC."""
    numbers = map(str, (*ports, PROOFS, K, STRENGTH))
    command = [str(chia_env.python()), str(PROGRAM), str(folder), *numbers, how]
    async with running(*command, env=chia_env.variables(folder), stdin=asyncio.subprocess.PIPE) as started:
        await started.says('"ready"', started.out)
        yield Farmer(started)


async def test_every_partial_proof_is_answered_though_workers_die_and_the_farmer_restarts(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as programs:
        farm = Farm(tmp_path, programs)
        workers = [await farm.worker() for _ in range(3)]
        nodes = [word for _, port in workers for word in ("-n", f"127.0.0.1:{port}")]
        front = await farm.command("solver", "serve", "-p", "0", "--admin-port", "0", *nodes)
        await front.listening()
        port = front.out[0].rsplit(" ", 1)[1]
        attaching = [
            "solver",
            "attach",
            "--farmer",
            f"127.0.0.1:{farm.ports[1]}",
            "--solver",
            f"127.0.0.1:{port}",
        ]
        attaching += ["--chia-root", str(tmp_path / "chia"), "--every", "1", "--json"]
        async with farmer(tmp_path, farm.ports) as first:
            attach = await farm.command(*attaching)
            await attach.says('"attached"', attach.out)
            first.ask(0, 30)
            await first.has(3)
            for worker, _ in workers[:2]:
                worker.process.kill()
            await first.has(30)
            assert all(first.proofs.values())
        await attach.says('"unreachable"', attach.out)
        async with farmer(tmp_path, farm.ports) as again:
            await eventually(
                lambda: sum('"connected_now": true' in line for line in attach.out) == 2, 60, "a return"
            )
            again.ask(30, PROOFS)
            await again.has(PROOFS - 30)
            assert all(again.proofs.values())
        solved = [json.loads(line) for line in front.log if '"solution"' in line]
        assert {line["result"] for line in solved} == {"ok"}
        assert len({line["worker"] for line in solved}) == 3
        assert not any("answers_checked_by_length_only" in line for line in front.log)
        for running_still in (front, attach):
            running_still.process.terminate()
            assert await running_still.ended() == 0


async def test_the_farmer_of_2_7_5_as_it_is_takes_no_answer_of_any_solver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault of that release; where this fails, a newer one has mended it, and docs/how-to/v2-solver-pool.md changes."""

    async def any_proof(_: SolutionRequest) -> bytes:
        return bytes(16 * K)

    ports = free_port(), free_port()
    async with stage(WorkerDouble(any_proof)) as standing, farmer(tmp_path, ports, "stock") as stock:
        rpc = FarmerRpc(("127.0.0.1", ports[1]), rpc_context(tmp_path / "chia"), standing.http)
        attachment = Attachment(rpc, ("127.0.0.1", standing.front.port))
        assert (await attachment.look()).connected_now
        stock.ask(0, 1)
        await stock.program.says("missing 1 required positional argument: 'peer'")
        await eventually(lambda: not standing.front.farmers.connected)
        assert "answer_not_taken" in capsys.readouterr().out
        assert (await attachment.look()).connected_now
        assert stock.proofs == {}
