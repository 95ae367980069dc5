"""`gpupool recompute serve --external`: a program of somebody else's under our eyes, as processes."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from gigahorse_double import FRAME, REPLY, write_double
from gpupool.cli.local import LocalState, local_processes
from gpupool.contracts.recompute import RecomputeServerView
from gpupool.core.home import Home
from gpupool.core.processes import identify
from gpupool.recompute.demo import demo_request
from gpupool.recompute.proxy.nodes import Kind
from gpupool.recompute.proxy.sources import wishes_of_text
from polling import eventually

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
def echo(tmp_path: Path) -> Path:
    """A program that prints the recorded lines and answers each frame with its payload in reverse; `!` kills it."""
    return write_double(tmp_path)


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    path = tmp_path / "chia_recompute_server"
    path.write_text(FAKE)
    path.chmod(0o755)
    return path


async def start(checkout: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpupool", "recompute", "serve", *arguments),
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(checkout / "src"),
            "CHIAPOS_MAX_CORES": "7",
            **{name: value for name, value in os.environ.items() if name == "GPUPOOL_HOME"},
        },
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


async def exchange(port: int, frame: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(frame)
        return await asyncio.wait_for(reader.read(len(frame)), 60)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@asynccontextmanager
async def kept(
    checkout: Path, program: Path, port: int, *more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Keep a program with a status; give its keeper once the program listens."""
    child = await start(checkout, "--external", str(program), "--status", "-p", str(port), "-r", "1", *more)
    try:
        await line_with(child, "ReComputeServer listening")
        yield child
    finally:
        if child.returncode is None:
            child.terminate()
        await child.communicate()


async def test_one_port_carries_its_frames_and_tells_what_its_lines_say(
    checkout: Path, echo: Path, free_port: int
) -> None:
    async with (
        kept(checkout, echo, free_port),
        aiohttp.ClientSession(f"http://127.0.0.1:{free_port}") as http,
    ):
        assert await exchange(free_port, FRAME) == REPLY

        async def view() -> RecomputeServerView | None:
            async with http.get("/v1/server") as answer:
                assert answer.headers["X-Gpupool-Kinds"] == "frames"
                seen = RecomputeServerView.model_validate(await answer.json())
                return seen if seen.external is not None and seen.external.requests else None

        seen = await eventually(view)
        assert seen.external is not None
        assert (seen.state, seen.devices[0].name, seen.devices[0].kind) == (
            "ready",
            "NVIDIA GeForce RTX 3070",
            "gpu",
        )
        assert (seen.external.mean_ms, seen.external.on_card, seen.external.starts) == ({"C7": 12.5}, 1, 1)
        async with http.get("/readyz") as answer:
            assert answer.status == 200
        async with http.post("/v1/proofs", data=demo_request().model_dump_json()) as answer:
            assert answer.status == 422
            assert "Gigahorse" in (await answer.json(content_type=None))["detail"]
        # One that dies is not ready until it is started again, and its end is told.
        assert await exchange(free_port, b"\x01\0\0\0!") == b""

        async def back() -> bool:
            async with http.get("/v1/server") as answer:
                known = (await answer.json())["external"]
                return bool(known["starts"] == 2 and known["listening"] and "status 134" in known["why"])

        await eventually(back)
        assert await exchange(free_port, FRAME) == REPLY


async def test_silent_connections_wait_here_and_never_reach_it(
    checkout: Path, echo: Path, free_port: int
) -> None:
    """Twelve places for one thread; silence takes none of them, since it is no frame."""
    async with kept(checkout, echo, free_port):
        silent = [await asyncio.open_connection("127.0.0.1", free_port) for _ in range(40)]
        assert await exchange(free_port, FRAME) == REPLY
        for _, writer in silent:
            writer.close()


async def test_it_ends_with_its_keeper_however_that_ends(checkout: Path, echo: Path, free_port: int) -> None:
    async with kept(checkout, echo, free_port) as child:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{free_port}/v1/server") as answer,
        ):
            pid = (await answer.json())["external"]["pid"]
        program = identify(pid)
        assert program is not None
        child.kill()
        await child.wait()
        await eventually(lambda: not program.alive())


async def test_a_proxy_that_is_told_of_it_as_of_a_server_of_ours_finds_out_that_it_takes_frames(
    checkout: Path, echo: Path, free_port: int, tmp_path: Path
) -> None:
    """As control's feed tells it: recompute, at this address."""
    nodes = tmp_path / "nodes"
    nodes.write_text(f"127.0.0.1:{free_port} kind=http\n")
    async with kept(checkout, echo, free_port):
        proxy = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpupool", "recompute", "proxy", "-p", "0", "--nodes-file", str(nodes)),
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(checkout / "src"), "HOME": str(tmp_path)},
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            port = int((await line_with(proxy, "ReComputeProxy listening")).split()[-1])

            async def carried() -> bool:
                return await exchange(port, FRAME) == REPLY

            await eventually(carried)
        finally:
            proxy.terminate()
            await proxy.communicate()


async def test_status_shows_it_where_a_state_folder_was_chosen(
    checkout: Path, echo: Path, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))
    async with kept(checkout, echo, free_port) as keeper:
        processes = {process.name: process for process in local_processes(Home(tmp_path / "home"))}
        found = processes["recompute-external"]
        assert (found.state, found.pid, found.kind) == (LocalState.RUNNING, keeper.pid, "recompute")
        assert found.address == f"http://127.0.0.1:{free_port}"
    assert not (tmp_path / "home" / "run" / "recompute-external.json").exists()
