"""Server and proxy whose output goes nowhere: a full disk under the log, closed streams, a reader that does not read."""

import asyncio
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from polling import eventually
from proxy_program import COMMAND, DROP_IN
from proxy_stage import HttpNode, nodes

SERVER = "from gpupool.cli.recompute_server_dropin import main; main()"
TO_FULL_DISK = 'exec "$@" >/dev/full 2>/dev/full'
CLOSED = 'exec "$@" <&- >&- 2>&-'
STUCK = 'exec "$@"'
"""Into a pipe that is full, as of a terminal that is paused or a log program that hangs."""
QUESTION = b'{"level": 1}'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))


@contextmanager
def started(shell: str, code: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program by way of a shell that takes its output away."""
    reading, writing = full_pipe()
    output = writing if shell == STUCK else None
    command = ["sh", "-c", shell, "sh", sys.executable, "-c", code, *words]
    process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        os.close(reading)
        os.close(writing)


def full_pipe() -> tuple[int, int]:
    """Return the ends of a pipe whose writers wait until it is read."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    return reading, writing


def asked(port: int, path: str, body: bytes | None = None) -> tuple[int, bytes] | None:
    """Return status and answer; None where nobody answers."""
    with suppress(OSError), closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    return None


async def listens(port: int) -> bool:
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.abort()
        return True
    return False


def stopped(process: "subprocess.Popen[bytes]") -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(60)


@pytest.mark.parametrize("shell", [TO_FULL_DISK, CLOSED, STUCK])
async def test_a_proxy_forwards_and_ends_well(free_port: int, shell: str) -> None:
    node = HttpNode()
    code, words = (DROP_IN, []) if shell == TO_FULL_DISK else (COMMAND, ["recompute", "proxy"])
    words += ["--host", "127.0.0.1", "-p", str(free_port)]
    async with nodes(node):
        with started(shell, code, *words, "-n", node.address) as process:
            await eventually(lambda: listens(free_port), 60, "the proxy listening")
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
                writer.write(
                    b"POST /v1/proofs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(QUESTION)
                )
                writer.write(QUESTION)
                assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
                writer.transport.abort()
            assert stopped(process) == 0
    assert all(seen == QUESTION for seen in node.seen), "nothing else went into a connection"


@pytest.mark.parametrize("shell", [TO_FULL_DISK, CLOSED, STUCK])
def test_a_server_answers_and_ends_well(free_port: int, shell: str) -> None:
    words = ("--host", "127.0.0.1", "-p", str(free_port), "-r", "1", "-G", "0", "-O", "0")
    with started(shell, SERVER, *words) as process:
        limit = time.monotonic() + 60
        while asked(free_port, "/healthz") is None:
            assert time.monotonic() < limit, "the server does not answer"
        # Each is a line of its output, whether it could be worked on or not.
        for _ in range(3):
            status, answer = asked(free_port, "/v1/proofs", b"no question") or (0, b"")
            assert (status, b"request_id" in answer) in {(400, True), (503, True)}
        assert stopped(process) == 0
