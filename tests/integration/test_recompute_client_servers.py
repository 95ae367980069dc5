"""The client with two real servers, of which one is killed while it is asked."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest

import mainnet
from gpupool.pos.quality import proof_pair
from gpupool.recompute.client import AsyncClient, ClientOptions, Host
from gpupool.recompute.demo import proof_request, quality_request
from polling import eventually

pytestmark = pytest.mark.timeout(240)


@contextmanager
def serving(checkout: Path, home: Path) -> Iterator[tuple[Host, subprocess.Popen[bytes]]]:
    """Run ``gpupool recompute serve`` on a free port as long as the block lasts; it is not ready yet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = Host("127.0.0.1", int(probe.getsockname()[1]))
    command = [sys.executable, "-m", "gpupool", "recompute", "serve", "-p", str(host.port), "-r", "1"]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "GPUPOOL_HOME": str(home)}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield host, child
    finally:
        child.kill()
        child.wait()


async def ready(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/readyz") as reply:
            return reply.status == 200
    except aiohttp.ClientError:
        return False


async def test_two_real_servers_of_which_one_dies_lose_no_look_up(checkout: Path, tmp_path: Path) -> None:
    with serving(checkout, tmp_path / "a") as (one, first), serving(checkout, tmp_path / "b") as (other, _):
        known = [one, other]
        for host in known:
            await eventually(partial(ready, host.url), seconds=150, what=f"{host.name} ready")
        async with AsyncClient(ClientOptions(hosts=tuple(known), timeout_s=60.0)) as client:
            for number, proof in enumerate(mainnet.K32):
                if number == len(mainnet.K32) // 2:
                    first.kill()
                whole, pair = await asyncio.gather(
                    client.recover_proof(proof_request(proof, 1)),
                    client.look_up_quality(quality_request(proof, 3)),
                )
                assert whole.numbers == proof.xs
                assert pair.numbers == proof_pair(proof.xs, proof.challenge)
            states = {view.name: view.state for view in client.hosts()}
    assert states == {known[0].name: "resting", known[1].name: "good"}
