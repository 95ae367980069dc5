"""A proxy with a thousand clients fits into 40 MB, however it was started: it serves without the command's modules."""

import asyncio
import os
import re
import resource
import signal
from pathlib import Path

import pytest

from gpupool.recompute.proxy.border import BorderFiles
from gpupool.recompute.proxy.settings import ProxySettings
from gpupool.recompute.proxy.settings_text import from_text, to_text
from gpupool.recompute.proxy.trust import Trust
from proxy_program import COMMAND, DROP_IN, program
from proxy_stage import FrameNode, frame, nodes, read_frame

LIMIT_BYTES = 40_000_000
CLIENTS = 1000
UNWANTED = {
    "typer",
    "click",
    "rich",
    "pygments",
    "pydantic",
    "httpx",
    "aiohttp",
    "attr",
    "cryptography",
    "sqlalchemy",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))


def resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize(("code", "words"), [(DROP_IN, ()), (COMMAND, ("recompute", "proxy"))])
async def test_a_thousand_clients_fit(code: str, words: tuple[str, ...], free_port: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    node = FrameNode()
    connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    arguments = (*words, "--host", "127.0.0.1", "-p", str(free_port))
    async with nodes(node), program(code, *arguments, "-n", node.address) as started:
        await started.listening()
        try:
            connections += [await asyncio.open_connection("127.0.0.1", free_port) for _ in range(CLIENTS)]
            for _ in range(3):
                for _, writer in connections:
                    writer.write(frame(b"x" * 120))
                for reader, _ in connections:
                    assert len(await read_frame(reader)) == 127
            assert resident_bytes(started.process.pid) < LIMIT_BYTES
        finally:
            for _, writer in connections:
                writer.transport.abort()


@pytest.mark.parametrize(("code", "words"), [(DROP_IN, ()), (COMMAND, ("recompute", "proxy"))])
async def test_the_serving_process_loads_nothing_that_it_does_not_need(
    code: str, words: tuple[str, ...], free_port: int
) -> None:
    environment = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    arguments = (*words, "--host", "127.0.0.1", "-p", str(free_port), "-n", "localhost:1")
    async with program(code, *arguments, env=environment) as started:
        await started.listening()
        started.process.send_signal(signal.SIGTERM)
        assert await started.ended() == 0
    text = "\n".join(started.log)
    loaded = set(
        re.findall(r"^import time:.*\|\s*(\w+)\.\w", text.rsplit("imported package", 1)[1], re.MULTILINE)
    )
    assert {"gpupool", "uvloop", "structlog"} <= loaded
    assert loaded & UNWANTED == set()
    control = re.findall(
        r"gpupool\.(cli\.\w+|contracts|control|store|agent)", text.rsplit("imported package", 1)[1]
    )
    assert set(control) <= {
        "cli.original_programs",
        "cli.recompute_proxy_dropin",
        "cli.recompute_proxy_process",
    }


def test_settings_go_through_text_whole() -> None:
    given = ProxySettings(
        host="::1", port=7, nodes=("a:1", "b tls"), nodes_file=Path("/n"), deadline_seconds=1.5, takeover=True,
        alert_url="https://x/secret", client_rate=2.5, border=BorderFiles(Path("c"), Path("k"), require_tls=True),
        trust=Trust(tls=True, pin=b"\x00\xff" * 16, certificate=Path("c"), key=Path("k")), check_answers=False,
    )  # fmt: skip
    assert from_text(to_text(given)) == given
    assert from_text(to_text(ProxySettings(nodes=("a",)))) == ProxySettings(nodes=("a",))
