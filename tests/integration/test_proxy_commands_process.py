"""Commands to real proxy processes: across a takeover and a kill, and where nothing of POSIX exists."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpupool.cli.main import app
from gpupool.core.errors import GpupoolError
from polling import eventually
from proxy_program import COMMAND, DROP_IN, program
from proxy_stage import FrameNode, frame, nodes, read_frame

PATIENCE = 60.0
WITHOUT_POSIX = """
import sys
for name in ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog", "uvloop", "readline"):
    sys.modules[name] = None
import os
for name in ("fork", "pidfd_open", "sched_getaffinity", "geteuid", "getuid", "setsid"):
    if hasattr(os, name):
        delattr(os, name)
"""


SEVERAL = """
from gpupool.cli.main import app
port, node = sys.argv[1:]
for words in (["nodes", "weight", node, "2"], ["nodes", "list"], ["top", "--once"], ["clients", "--names"]):
    app(["recompute", *words, "-p", port], standalone_mode=False)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


async def command(*words: str) -> tuple[int, str]:
    """Return exit code and output of ``gpupool recompute …``."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["recompute", *words])
    code = result.exception.exit_code if isinstance(result.exception, GpupoolError) else result.exit_code
    return code, result.output


async def python(code: str, *words: str) -> tuple[int, str]:
    """Return exit code and output of a program."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def ask(port: int, payload: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(frame(payload))
        return await read_frame(reader)
    finally:
        writer.transport.abort()


async def listed(port: int, names: set[str]) -> dict[str, Any]:
    """Wait until the proxy on ``port`` takes commands and has these nodes; return what it lists."""

    async def look() -> dict[str, Any] | None:
        code, output = await command("nodes", "list", "-p", str(port), "--json")
        found = json.loads(output) if code == 0 else {"nodes": []}
        return found if {row["name"] for row in found["nodes"]} == names else None

    return await eventually(look, PATIENCE, "the list of nodes")


async def test_nodes_and_history_go_over_to_a_successor(free_port: int) -> None:
    first, second, port = FrameNode(), FrameNode(), str(free_port)
    start = ("recompute", "proxy", "-p", port)
    async with nodes(first, second), program(COMMAND, *start, "-n", first.address) as old:
        await old.listening()
        before = await listed(free_port, {first.address})
        assert (await command("nodes", "add", second.address, "-p", port))[0] == 0
        assert (await command("nodes", "drain", first.address, "-p", port))[0] == 0
        await eventually(lambda: ask(free_port, b"x"), PATIENCE, "an answer")
        async with program(COMMAND, *start, "-n", first.address, "--takeover") as new:
            assert await old.ended() == 0
            after = await listed(free_port, {first.address, second.address})
            assert after["proxy"]["instance_id"] != before["proxy"]["instance_id"]
            assert {row["name"]: row["draining"] for row in after["nodes"]}[first.address]
            code, output = await command("clients", "-p", port, "--json")
            assert code == 0
            assert [row["requests"] for row in json.loads(output)["clients"]] == [1]
            new.process.send_signal(signal.SIGTERM)
            assert await new.ended() == 0


async def test_what_was_acknowledged_survives_a_kill(free_port: int) -> None:
    node, port = FrameNode(), str(free_port)
    start = ("recompute", "proxy", "-p", port, "-n", "127.0.0.1:1")
    async with nodes(node):
        async with program(COMMAND, *start) as killed:
            await killed.listening()
            await listed(free_port, {"127.0.0.1:1"})
            assert (await command("nodes", "add", node.address, "-p", port))[0] == 0
            killed.process.kill()
            await killed.process.wait()
            assert (await command("top", "--once", "-p", port))[0] == 8
        async with program(COMMAND, *start) as again:
            await again.listening()
            await listed(free_port, {"127.0.0.1:1", node.address})


async def test_it_needs_nothing_of_posix(free_port: int) -> None:
    node, port, code = FrameNode(), str(free_port), WITHOUT_POSIX + DROP_IN
    start = ("--host", "127.0.0.1", "-p", port, "-n")
    # The other command serves in a process that it starts anew, with all of POSIX.
    async with nodes(node), program(code, *start, node.address) as started:
        await started.listening()
        await listed(free_port, {node.address})
        status, output = await python(WITHOUT_POSIX + SEVERAL, port, node.address)
    assert status == 0, output
    assert f"{node.address} is changed" in output
    assert "Busiest clients" in output


async def test_the_proxy_loads_no_framework() -> None:
    names = ("pydantic", "httpx", "aiohttp", "numpy", "statistics")
    code = (
        f"import sys, gpupool.recompute.proxy.main\nprint([name for name in {names} if name in sys.modules])"
    )
    assert await python(code) == (0, "[]\n")
