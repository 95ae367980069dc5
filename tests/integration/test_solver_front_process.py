"""The solver front as operators start it: says who it is, keeps its identity, and stops when told."""

import asyncio
import os
import re
import stat
from pathlib import Path

import aiohttp

from gpupool.contracts.recompute import SolutionRequest
from gpupool.recompute.solver_front.identity import Identity
from polling import eventually
from proxy_program import COMMAND, Program, program
from solver_stage import FarmerDouble, WorkerDouble, made_identity, proof_of, question


def port_of(front: Program) -> int:
    found = re.search(r"port (\d+)", front.out[0])
    assert found is not None
    return int(found[1])


async def test_it_says_who_it_is_answers_and_stops_when_told(tmp_path: Path) -> None:
    environment = os.environ | {"GPUPOOL_HOME": str(tmp_path)}
    worker = WorkerDouble()
    await worker.start()
    serving = ("solver", "serve", "-p", "0", "--admin-port", "0", "-n", worker.name)
    try:
        async with program(COMMAND, *serving, env=environment) as front, aiohttp.ClientSession() as http:
            await front.says("Pages for you", front.out)
            own = Identity.load_or_make(tmp_path / "keys")
            assert front.out[1] == f"Node id: {own.node_id}"
            assert stat.S_IMODE(own.key.stat().st_mode) == 0o600
            pages = front.out[2].rpartition(" ")[2].removesuffix("/v1/front")

            async def ready() -> bool:
                async with http.get(f"{pages}/readyz") as answer:
                    return answer.status == 200

            await eventually(ready)
            farmer = await FarmerDouble(port_of(front), made_identity(1), http).connect()
            await farmer.greet()
            assert await farmer.solve(question(1)) == proof_of(question(1).partial_proof)
            taken = ("solver", "serve", "-p", str(port_of(front)), "-n", worker.name)
            async with program(COMMAND, *taken, env=environment) as second:
                assert await second.ended() == 3
                await second.says("is taken")
            front.process.terminate()
            assert await front.ended() == 0
            assert farmer.socket is not None
            await farmer.socket.close()
    finally:
        await worker.stop()


async def test_a_second_signal_does_not_wait_for_what_was_asked(tmp_path: Path) -> None:
    async def never(_: SolutionRequest) -> bytes:
        await asyncio.Event().wait()
        return b""

    worker = WorkerDouble(never)
    await worker.start()
    serving = ("solver", "serve", "-p", "0", "--admin-port", "0", "-n", worker.name, "--drain", "300")
    environment = os.environ | {"GPUPOOL_HOME": str(tmp_path)}
    try:
        async with program(COMMAND, *serving, env=environment) as front, aiohttp.ClientSession() as http:
            await front.says("Node id", front.out)
            farmer = await FarmerDouble(port_of(front), made_identity(1), http).connect()
            await farmer.greet()
            await farmer.ask(question(1))
            await eventually(lambda: worker.asked)
            front.process.terminate()
            await front.says("solver_front_stopping")
            front.process.terminate()
            assert await front.ended() == 0
            assert farmer.socket is not None
            await farmer.socket.close()
    finally:
        await worker.stop()


async def test_without_workers_it_does_not_start(tmp_path: Path) -> None:
    async with program(COMMAND, "solver", "serve", env=os.environ | {"GPUPOOL_HOME": str(tmp_path)}) as front:
        assert await front.ended() == 2
        await front.says("has no workers")
        assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []
