"""Cards through the whole server, as a process: an OpenCL device that is a CPU takes the place of one.

It takes a third of a second for a proof at C1, more than the CPU engine beside it, so what is shown is who computes
and that it is right, not speed.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

import mainnet
from gpupool.contracts.recompute import RecomputeServerView
from gpupool.devices.recovery.cards import CPU_AS_CARD
from gpupool.pos.quality import proof_pair
from gpupool.recompute.demo import KnownProof, proof_request, quality_request
from polling import eventually

LAUNCHER = "from gpupool.cli.recompute_server_dropin import main; main()"
LISTENING = re.compile(r"ReComputeServer listening on \S+ port (\d+)")
START_SECONDS = 150.0
"""With every kernel to compile for the CPU and for OpenCL."""


class Running:
    """A server with a card."""

    def __init__(self, child: asyncio.subprocess.Process, http: aiohttp.ClientSession) -> None:
        self.child, self.http = child, http
        self.lines: list[str] = []
        self.url = ""

    async def line(self) -> str:
        """Return the next line that the server prints."""
        assert self.child.stdout is not None
        line = (await asyncio.wait_for(self.child.stdout.readline(), 60)).decode().rstrip("\n")
        assert line
        self.lines.append(line)
        return line

    async def view(self) -> RecomputeServerView:
        async with self.http.get(self.url + "/v1/server") as answer:
            return RecomputeServerView.model_validate(await answer.json())

    async def states(self, *wanted: str) -> bool:
        return tuple(device.state for device in (await self.view()).devices) == wanted

    async def prove(self, proof: KnownProof) -> str:
        """Have a proof at C1 recovered; return the line of the request."""
        body = proof_request(proof, 1).model_dump_json(exclude_none=True)
        async with self.http.post(self.url + "/v1/proofs", data=body) as answer:
            assert answer.status == 200, await answer.text()
            assert [int(x, 16) for x in (await answer.json())["proof"]] == list(proof.xs)
        return await self.line()

    async def look_up(self, proof: KnownProof) -> str:
        """Have a quality at C1 looked up; return the line of the request."""
        body = quality_request(proof, 1).model_dump_json(exclude_none=True)
        async with self.http.post(self.url + "/v1/qualities", data=body) as answer:
            pair = proof_pair(proof.xs, proof.challenge)
            assert [int(x, 16) for x in (await answer.json())["x"]] == list(pair)
        return await self.line()


@asynccontextmanager
async def running(checkout: Path, home: Path, *arguments: str, **more: str) -> AsyncIterator[Running]:
    """Start a server that may take the CPU for a card; give it once it listens."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(checkout / "src"),
        "NUMBA_CACHE_DIR": os.environ["NUMBA_CACHE_DIR"],
        "GPUPOOL_HOME": str(home),
        CPU_AS_CARD: "1",
    }
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LAUNCHER, "-p", "0", "--host", "127.0.0.1", "-r", "1", *arguments),
        env=env | more,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with aiohttp.ClientSession() as http:
            server = Running(child, http)
            while not (found := LISTENING.fullmatch(await server.line())):
                pass
            server.url = f"http://127.0.0.1:{found[1]}"
            yield server
    finally:
        if child.returncode is None:
            child.terminate()
        await child.communicate()


async def test_a_card_answers_what_is_worth_it_and_the_cpu_the_rest(checkout: Path, tmp_path: Path) -> None:
    async with running(checkout, tmp_path) as server:
        assert "[chiapos] Using 1 / 1 OpenCL devices" in server.lines
        assert any(re.fullmatch(r"Using .+ \(OpenCL\)", line) for line in server.lines)
        await eventually(lambda: server.states("ready", "ready"), START_SECONDS)
        # The CPU is tried first, then the card, of which nothing is known.
        proofs = [await server.prove(proof) for proof in mainnet.K32[1:3]]
        quality = await server.look_up(mainnet.K32[3])
        again = await server.prove(mainnet.K32[1])
        view = await server.view()
    assert "(used_gpu = 0, is_fail = 0, engine = numba" in proofs[0]
    assert "(used_gpu = 1, is_fail = 0, engine = opencl" in proofs[1]
    assert "(used_gpu = 0, is_fail = 0, engine = numba" in quality
    assert "(used_gpu = 0, is_fail = 0, engine = known" in again
    cpu, card = view.devices
    assert (cpu.kind, card.kind, card.engine, card.index, card.workers) == ("cpu", "gpu", "opencl", 0, 2)
    assert card.rates[0].proof_ms
    assert card.rates[0].quality_ms is None


async def test_a_card_that_is_not_wanted_has_no_worker(checkout: Path, tmp_path: Path) -> None:
    async with running(checkout, tmp_path, CHIAPOS_MAX_GPU_DEVICES="0") as server:
        assert not any("OpenCL" in line for line in server.lines)
        assert len((await server.view()).devices) == 1
    async with running(checkout, tmp_path, "-c", "0", "-G", "0", CHIAPOS_MAX_OPENCL_DEVICES="0") as server:
        assert "[chiapos] Using 1 / 1 OpenCL devices" in server.lines
        assert [device.kind for device in (await server.view()).devices] == ["cpu", "gpu"]
