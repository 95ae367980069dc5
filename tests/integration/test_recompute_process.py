"""The recompute server as a process of its own: it comes up, recovers real proofs, and stops cleanly."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

import mainnet
from gpupool.contracts.recompute_client import RecomputeClient
from gpupool.core.errors import PortTakenError
from gpupool.pos.errors import NoProofError
from gpupool.pos.quality import quality_string
from gpupool.recompute.demo import proof_request, quality_request
from gpupool.recompute.server.cards import CardChoice, CardChoices
from gpupool.recompute.server.main import run
from gpupool.recompute.server.settings import RecomputeServerSettings
from polling import PAUSE

START_SECONDS = 100.0
"""With every kernel to compile and other tests on the same cores."""
NO_CHOICE = CardChoices(CardChoice("CUDA"), CardChoice("OpenCL"))
PROGRAM = """
import sys
from gpupool.cli.recompute import app
from gpupool.core.errors import GpupoolError
try:
    app()
except GpupoolError as error:
    print(f"{error.code}: {error.message} {error.remedy}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, *arguments]


def environment(checkout: Path, home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(checkout / "src"),
        "GPUPOOL_HOME": str(home),
        "GPUPOOL_INSTANCE_ID": "inst-told",
        "NUMBA_CACHE_DIR": os.environ["NUMBA_CACHE_DIR"],
    }


Answer = tuple[int, dict[str, str]] | None


async def answer(url: str, path: str) -> Answer:
    """Status and parsed body, or None where nobody answers."""
    try:
        async with aiohttp.ClientSession() as http, http.get(url + path) as reply:
            return reply.status, await reply.json(content_type=None)
    except aiohttp.ClientError:
        return None


async def until(look: Callable[[], Awaitable[Answer]], status: int) -> None:
    """Wait for an answer with that status."""
    deadline = time.monotonic() + START_SECONDS
    while (found := await look()) is None or found[0] != status:
        assert time.monotonic() < deadline, f"no {status} in time; last: {found}"
        await asyncio.sleep(PAUSE)


@asynccontextmanager
async def server(
    checkout: Path, home: Path, port: int, *arguments: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Start a server and give it with its URL as soon as it listens; see that it is gone afterwards."""
    line = command("serve", "--port", str(port), *arguments)
    child = await asyncio.create_subprocess_exec(*line, env=environment(checkout, home))
    url = f"http://127.0.0.1:{port}"

    async def health() -> Answer:
        assert child.returncode is None
        return await answer(url, "/healthz")

    try:
        await until(health, 200)
        yield child, url
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def ready(url: str) -> None:
    await until(lambda: answer(url, "/readyz"), 200)


async def test_it_recovers_real_proofs_and_qualities_and_stops_when_told(
    checkout: Path, tmp_path: Path, free_port: int
) -> None:
    proof = mainnet.K32[11]
    async with server(checkout, tmp_path, free_port, "-r", "2") as (child, url):
        health = await answer(url, "/healthz")
        assert health is not None
        assert health[1]["instance_id"] == "inst-told"
        await ready(url)

        def use() -> None:
            with RecomputeClient(url) as client:
                for level in (1, 5):
                    reply = client.recover_proof(proof_request(proof, level), seconds=60)
                    assert (reply.numbers(), reply.checked) == (proof.xs, "challenge")
                    pair = client.look_up_quality(quality_request(proof, level), seconds=60).numbers()
                    assert quality_string(proof.challenge, pair, 32) == proof.quality
                bare = proof_request(proof, 1).model_copy(update={"challenge": None})
                assert client.recover_proof(bare, seconds=60).checked == "tables"
                foreign = proof_request(proof, 1).model_copy(update={"plot_id": "00" * 32})
                with pytest.raises(NoProofError):
                    client.recover_proof(foreign, seconds=60)

        await asyncio.to_thread(use)
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0
        assert await answer(url, "/healthz") is None


async def test_the_check_command_asks_a_server_the_known_question(
    checkout: Path, tmp_path: Path, free_port: int
) -> None:
    async with server(checkout, tmp_path, free_port) as (_, url):
        await ready(url)
        child = await asyncio.create_subprocess_exec(
            *command("check", url, "--level", "2", "--seconds", "60"),
            env=environment(checkout, tmp_path),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await child.communicate()
    assert child.returncode == 0
    assert b"all 64 x recovered from C2" in output


async def test_a_stop_while_it_compiles_does_not_wait_for_the_compiler(
    checkout: Path, tmp_path: Path, free_port: int
) -> None:
    empty = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    child = await asyncio.create_subprocess_exec(
        *command("serve", "--port", str(free_port)), env=environment(checkout, tmp_path) | empty
    )
    url = f"http://127.0.0.1:{free_port}"
    try:
        await until(lambda: answer(url, "/readyz"), 503)
        child.send_signal(signal.SIGINT)
        assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def test_a_taken_port_is_a_clear_error(checkout: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        child = await asyncio.create_subprocess_exec(
            *command("serve", "--port", str(port)),
            env=environment(checkout, tmp_path),
            stderr=asyncio.subprocess.PIPE,
        )
        _, complaint = await child.communicate()
    assert child.returncode == 3
    assert f"port_taken: Port {port}".encode() in complaint
    assert b"--port" in complaint


def test_a_taken_port_is_seen_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortTakenError):
        run(RecomputeServerSettings(home=tmp_path, recompute_port=taken.getsockname()[1]), NO_CHOICE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["--port", "70000"], ["--queue", "-1"], ["--log-level", "loud"], ["--drain", "-1"]]
)
async def test_settings_that_make_no_sense_are_refused(
    checkout: Path, tmp_path: Path, arguments: list[str]
) -> None:
    child = await asyncio.create_subprocess_exec(
        *command("serve", *arguments), env=environment(checkout, tmp_path), stderr=asyncio.subprocess.PIPE
    )
    _, complaint = await child.communicate()
    assert child.returncode == 2
    assert b"settings are not valid" in complaint
