"""`gpupool recompute serve --external`: a program of somebody else's under our eyes, as processes."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from gpupool.recompute.proxy.nodes import Kind
from gpupool.recompute.proxy.sources import wishes_of_text

FAKE = f"""#!{sys.executable}
import os, socket, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
listener = socket.create_server((given["--host"], int(given["-p"])))
print("Using NVIDIA GeForce RTX 3070 (CUDA (native))", flush=True)
print(f"ReComputeServer listening on {{given['--host']}} port {{given['-p']}}", flush=True)
print(f"pid {{os.getpid()}} cores {{os.environ.get('CHIAPOS_MAX_CORES')}} args {{' '.join(sys.argv[1:])}}", flush=True)
listener.accept()
print("[1] Request from 127.0.0.1 for K32 C7 took 12.5 ms (used_gpu = 1, is_fail = 0)", flush=True)
sys.exit(134)
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    path = tmp_path / "chia_recompute_server"
    path.write_text(FAKE)
    path.chmod(0o755)
    return path


async def start(checkout: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpupool", "recompute", "serve", *arguments),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(checkout / "src"), "CHIAPOS_MAX_CORES": "7"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def line_with(child: asyncio.subprocess.Process, word: str) -> str:
    assert child.stdout is not None
    while True:
        line = await asyncio.wait_for(child.stdout.readline(), 60)
        assert line, f"it ended before it said {word!r}"
        if word in line.decode():
            return line.decode().rstrip("\n")


async def test_it_is_started_with_its_flags_again_after_a_crash_and_stopped_with_us(
    checkout: Path, fake: Path, free_port: int
) -> None:
    nodes = fake.with_name("nodes")
    child = await start(
        *(checkout, "--external", str(fake), "-p", str(free_port), "-r", "3", "-g", "0,1"),
        *("--register", str(nodes)),
    )
    try:
        told = await line_with(child, "pid ")
        assert f"cores 7 args -p {free_port} --host 127.0.0.1 -r 3 -g 0 -g 1" in told
        with socket.create_connection(("127.0.0.1", free_port)):
            await line_with(child, "Request from")
        again = await line_with(child, "pid ")
        assert [(wish.host, wish.port, wish.kind) for wish in wishes_of_text(nodes.read_text())] == [
            ("127.0.0.1", free_port, Kind.FRAMES)
        ]
        assert again.split()[1] != told.split()[1]
        child.send_signal(signal.SIGTERM)
        _, logged = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.communicate()
    assert child.returncode == 0
    assert wishes_of_text(nodes.read_text()) == []
    assert b'"status": 134' in logged
    assert b"external_stopped" in logged
    with pytest.raises(ProcessLookupError):
        os.kill(int(again.split()[1]), 0)


async def test_a_port_that_is_taken_is_told_before_it_is_started(checkout: Path, fake: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        child = await start(checkout, "--external", str(fake), "-p", str(taken.getsockname()[1]))
        printed, complaint = await child.communicate()
    assert (child.returncode, printed) == (3, b"")
    assert b"is taken by pid" in complaint


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--queue", "3", "--tls-cert", "x"], b"--queue, --tls-cert"),
        (["--memory-mb", "0"], b"--memory-mb"),
        (["--log-level", "loud"], b"log level"),
        (["-g", "x"], b"index of a card"),
    ],
)
async def test_flags_that_it_cannot_honour_are_refused(
    checkout: Path, fake: Path, arguments: list[str], word: bytes
) -> None:
    child = await start(checkout, "--external", str(fake), *arguments)
    printed, complaint = await child.communicate()
    assert (child.returncode, printed) == (2, b"")
    assert word in complaint


@pytest.mark.parametrize("arguments", [["--memory-mb", "100"], ["--register", "nodes"]])
async def test_its_flags_are_refused_without_it(checkout: Path, arguments: list[str]) -> None:
    child = await start(checkout, *arguments)
    _, complaint = await child.communicate()
    assert child.returncode == 2
    assert b"Give --external too" in complaint
