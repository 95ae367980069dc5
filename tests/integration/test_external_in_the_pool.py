"""An operator's Gigahorse server as a workload: placed, in control's feed, reached through a proxy."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from gigahorse_double import FRAME, REPLY, write_double
from gpupool.contracts.recompute import RecomputeServerView
from light_pool import LightPool
from polling import eventually


@pytest.fixture
def program() -> Iterator[Path]:
    """The program, where a workload's own user may read it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield write_double(Path(folder))


async def exchange(port: int) -> bytes:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(FRAME)
        answer = await asyncio.wait_for(reader.read(len(REPLY)), 30)
        writer.close()
    except OSError:
        return b""
    return answer


async def test_a_kept_server_is_placed_listed_and_reached_through_a_proxy(
    program: Path, checkout: Path, tmp_path: Path
) -> None:
    # What an agent may read for its workloads, it takes from here among others.
    async with LightPool(tmp_path, LD_LIBRARY_PATH=str(program.parent)) as pool:
        await pool.start()
        serve = ["python", "-m", "gpupool", "recompute", "serve", "--external", str(program), "--status"]
        await pool.deploy(
            "rig",
            kind="recompute",
            command=[*serve, "--host", "{host}", "--port", "{port}", "-r", "1"],
            health="/readyz",
            memory_mb=256,
        )
        await pool.active("rig")
        feed = await pool.get("/v1/endpoints?protocol=recompute")
        (endpoint,) = feed["endpoints"]
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://{endpoint['address']}/v1/server") as answer,
        ):
            view = RecomputeServerView.model_validate(await answer.json())
        assert [device.name for device in view.devices] == ["NVIDIA GeForce RTX 3070"]
        proxy = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpupool", "recompute", "proxy", "-p", "0", "--control", pool.url),
            *("--token-file", str(pool.home.service_token)),
            env=os.environ | {"PYTHONPATH": str(checkout / "src"), "GPUPOOL_HOME": str(tmp_path / "proxy")},
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert proxy.stdout is not None
            while b"listening on" not in (line := await asyncio.wait_for(proxy.stdout.readline(), 60)):
                assert line
            port = int(line.split()[-1])

            async def carried() -> bool:
                return await exchange(port) == REPLY

            await eventually(carried)
        finally:
            proxy.terminate()
            await proxy.communicate()
        await pool.delete("rig")
        await pool.gone()
