"""Server, worker, proxy and client start and work where what only POSIX has is missing: as near to Windows as this gets.

The blocks come from a `sitecustomize`, so that they hold in every interpreter that one of the programs starts, too.
Not covered: the real loops, sockets and services of Windows, on which none of this was run.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from polling import eventually

BLOCKS = """
import sys
for name in ("fcntl", "grp", "pwd", "pty", "resource", "syslog", "termios", "tty", "uvloop"):
    sys.modules[name] = None
import asyncio, os, signal
def refuse(*_):
    raise NotImplementedError
asyncio.SelectorEventLoop.add_signal_handler = refuse
for name in ("fork", "getuid", "geteuid", "killpg", "pidfd_open", "sched_getaffinity", "setsid"):
    delattr(os, name)
for name in ("pidfd_send_signal", "SIGHUP"):
    delattr(signal, name)
sys.platform_blocks = True  # so that a program can tell that this was loaded
"""
SERVER = """
import asyncio, sys
assert sys.platform_blocks
from gpupool.core.listening import bind
from gpupool.recompute.server.main import serve
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.server.staffing import WorkerPlan
plans = [WorkerPlan(name="a test", engine="test", factory="worker_engines:obedient", threads=1)]
with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
    runner.run(serve(RecomputeServerSettings(recompute_port=0), bind("it", "127.0.0.1", 0, "X"), plans))
"""
PROXY = """
import sys
assert sys.platform_blocks
sys.argv = ["chia_recompute_proxy", "-p", "0", "--host", "127.0.0.1", "-n", sys.argv[1]]
from gpupool.cli.recompute_proxy_dropin import main
main()
"""
CLIENT = """
import sys
assert sys.platform_blocks
from gpupool.recompute.client import Client, ClientOptions
from gpupool.recompute.demo import demo_request, known_proof
with Client(ClientOptions.from_environment()) as client:
    assert client.recover_proof(demo_request(), timeout_s=60).numbers == known_proof().xs
print("recovered")
"""


@pytest.fixture
def environment(checkout: Path, tmp_path: Path) -> dict[str, str]:
    """One in which every interpreter lacks what Windows lacks."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKS)
    folders = (tmp_path, checkout / "src", checkout / "tests")
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "GPUPOOL_TEST_FOLDER": str(tmp_path),
        "HOME": str(tmp_path),
    }


@asynccontextmanager
async def running(
    environment: dict[str, str], program: str, *arguments: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Start a program; give it with its port once it listens."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *arguments), env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        while b" listening on " not in (line := await asyncio.wait_for(child.stdout.readline(), 60)):
            assert line, "it ended before it listened"
        yield child, int(line.split()[-1])
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def test_a_lookup_goes_through_client_proxy_server_and_worker(environment: dict[str, str]) -> None:
    async with running(environment, SERVER) as (server, server_port), aiohttp.ClientSession() as http:

        async def ready() -> bool:
            async with http.get(f"http://127.0.0.1:{server_port}/readyz") as answer:
                return answer.status == 200

        await eventually(ready)
        async with running(environment, PROXY, f"127.0.0.1:{server_port}") as (proxy, proxy_port):
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", CLIENT),
                env=environment | {"CHIAPOS_RECOMPUTE_HOST": f"127.0.0.1:{proxy_port}"},
                stdout=asyncio.subprocess.PIPE,
            )
            printed, _ = await asyncio.wait_for(client.communicate(), 60)
            assert (client.returncode, printed) == (0, b"recovered\n")
            proxy.terminate()
            assert await asyncio.wait_for(proxy.wait(), 60) == 0
        server.terminate()
        assert await asyncio.wait_for(server.wait(), 60) == 0
