"""Ctrl-C while a command waits or follows: it ends with 130 and without a traceback, and nothing else ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from light_pool import LightPool

PATIENCE = 60.0
SPEC = """\
name: never-ready
command: [python, -c, "import time; print('begun', flush=True); time.sleep(600)"]
health: /
memory_mb: 64
grace: 1
start_timeout: 300
"""


async def test_ctrl_c_ends_what_waits_and_what_follows(tmp_path: Path) -> None:
    spec = tmp_path / "never-ready.yaml"
    spec.write_text(SPEC)
    async with LightPool(tmp_path) as pool:
        await pool.start()
        told = await interrupted(pool, "never-ready: created", "chute", "deploy", str(spec))
        assert "never-ready" in told.splitlines()[-1]
        await interrupted(pool, "begun", "chute", "logs", "never-ready", "--follow")
        await interrupted(pool, "node.ready", "events", "--after", "0", "--follow")
        assert (pool.control.starts, pool.agent.starts) == (1, 1), pool.logs()


async def interrupted(pool: LightPool, shown: str, *arguments: str) -> str:
    """Press Ctrl-C once ``shown`` is there; return all that was told, which must be no traceback, and exit code 130."""
    told = pool.folder / "told"
    process = begun(pool, told, *arguments)
    try:
        deadline = time.monotonic() + PATIENCE
        while shown not in told.read_text():
            assert process.poll() is None, told.read_text()
            assert time.monotonic() < deadline, f"{shown} was not told\n{told.read_text()}"
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(process.wait, PATIENCE)
    finally:
        process.kill()
    text = told.read_text()
    assert code == 130, text
    assert "Traceback" not in text
    return text


def begun(pool: LightPool, told: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a command of this pool; all that it tells goes to the file ``told``."""
    with told.open("w") as out:
        return subprocess.Popen(
            [sys.executable, "-u", "-P", "-m", "gpupool", *arguments],
            env={**os.environ, **pool.control.env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
