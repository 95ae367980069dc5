"""Alert hooks: what a program and a web address get, how long they may take, and what is refused from the start."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from certificates import Authority
from gpupool.core.errors import InvalidInputError
from gpupool.notify.hooks import CommandHook, HookError, UrlHook
from polling import eventually

MESSAGE = json.dumps({"text": "node down"}).encode() + b"\n"


def program(folder: Path, body: str) -> Path:
    """Return an executable Python program; its standard input is `given`."""
    path = folder / "hook"
    path.write_text(
        f"#!{sys.executable}\nimport os, sys, time\nfrom pathlib import Path\nhere = Path(__file__).parent\n{body}"
    )
    path.chmod(0o700)
    return path


async def test_a_program_gets_the_message_and_none_of_our_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPOOL_TOKEN", "secret")
    body = "(here / 'out').write_text(sys.stdin.read() + repr(sys.argv[1:]) + str('GPUPOOL_TOKEN' in os.environ))"
    await CommandHook(program(tmp_path, body)).send(MESSAGE)
    assert (tmp_path / "out").read_text() == MESSAGE.decode() + "[]False"


async def test_a_program_that_does_not_read_is_free_not_to(tmp_path: Path) -> None:
    await CommandHook(program(tmp_path, "os.close(0)")).send(b"x" * 1_000_000)


async def test_a_status_is_told_with_the_first_words(tmp_path: Path) -> None:
    hook = CommandHook(program(tmp_path, "sys.stderr.write('no\\n route ' * 100_000); sys.exit(3)"))
    with pytest.raises(HookError, match=r"status 3: no route no route") as caught:
        await hook.send(MESSAGE)
    assert len(str(caught.value)) < 400


async def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    body = (
        "if os.fork() == 0:\n    (here / 'child').write_text(str(os.getpid()))\n    time.sleep(600)\n"
        "while not (here / 'child').exists() or not (here / 'child').read_text(): time.sleep(0.01)\n"
        "(here / 'ready').touch()\ntime.sleep(600)"
    )
    hook = CommandHook(program(tmp_path, body), seconds=600)
    sending = asyncio.create_task(hook.send(MESSAGE))
    await eventually((tmp_path / "ready").exists, what="the child")
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    child = int((tmp_path / "child").read_text())
    await eventually(lambda: not running(child), what="the end of the child")


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def test_the_limit_of_time_is_told(tmp_path: Path) -> None:
    with pytest.raises(HookError, match=r"did not end within 0\.2 s"):
        await CommandHook(program(tmp_path, "time.sleep(600)"), seconds=0.2).send(MESSAGE)


async def test_a_program_that_leaves_a_daemon_behind_is_not_waited_for(tmp_path: Path) -> None:
    body = "if os.fork() == 0:\n    os.setsid()\n    time.sleep(5)\n"
    await CommandHook(program(tmp_path, body), seconds=60).send(MESSAGE)


def test_a_program_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not there"):
        CommandHook(tmp_path / "none")
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    with pytest.raises(InvalidInputError, match="may not be executed"):
        CommandHook(tmp_path / "plain")


class Web:
    """A web server with one answer."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.port = 0
        self.received: list[bytes] = []
        self.left = asyncio.Event()

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.split(b"\r\n")
            length = next(int(line.split()[1]) for line in lines if line.startswith(b"Content-Length"))
            self.received.append(head + await reader.readexactly(length))
            writer.write(self.answer)
            if not self.answer:
                await reader.read()
        finally:
            writer.close()
            self.left.set()


@asynccontextmanager
async def web(answer: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[Web]:
    served = Web(answer)
    server = await asyncio.start_server(served.client, "127.0.0.1", 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
        async with asyncio.timeout(60):
            await served.left.wait()
    finally:
        server.close()


async def test_an_address_gets_the_message_by_post() -> None:
    async with web(b"HTTP/1.1 204 No Content\r\n\r\n") as served:
        hook = UrlHook(f"http://127.0.0.1:{served.port}/hooks/secret?key=1")
        await hook.send(MESSAGE)
    (request,) = served.received
    assert request.startswith(b"POST /hooks/secret?key=1 HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\n" + MESSAGE)
    assert "secret" not in hook.name
    assert hook.name == "url http://127.0.0.1"


async def test_over_https_only_a_certificate_that_this_machine_trusts_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("web")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    async with web(b"HTTP/1.1 200 OK\r\n\r\n", tls) as served:
        hook = UrlHook(f"https://localhost:{served.port}/")
        with pytest.raises(HookError, match="certificate verify failed"):
            await hook.send(MESSAGE)
        assert served.received == []
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        await hook.send(MESSAGE)
        assert len(served.received) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n", "status 302"),
        (b"HTTP/1.1 500 Oh\r\n\r\n", "status 500"),
        (b"HTTP/1.1 what\r\n\r\n", "cannot be reached"),
        (b"x" * 100_000, "cannot be reached"),
        (b"SSH-2.0\r\n", "status 0"),
    ],
)
async def test_another_answer_is_no_delivery(answer: bytes, why: str) -> None:
    async with web(answer) as served:
        with pytest.raises(HookError, match=why):
            await UrlHook(f"http://127.0.0.1:{served.port}/").send(MESSAGE)


async def test_an_address_that_says_nothing_is_left() -> None:
    async with web(b"") as served:
        with pytest.raises(HookError, match="did not answer within"):
            await UrlHook(f"http://127.0.0.1:{served.port}/", seconds=0.2).send(MESSAGE)


async def test_an_address_where_nobody_listens_is_told(free_port: int) -> None:
    with pytest.raises(HookError, match="cannot be reached"):
        await UrlHook(f"http://localhost:{free_port}/").send(MESSAGE)


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/hook",
        "http://example.com/",
        "ftp://127.0.0.1/",
        "https://",
        "https://user:password@example.com/",
        "https://example.com:port/",
        "https://example.com/a b",
        "https://example.com/\r\nX: y",
        "https://exämple.com/",
        "http://[::1/",
        "",
    ],
)
def test_other_addresses_end_the_start(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        UrlHook(url)
    assert "password" not in caught.value.message


@pytest.mark.parametrize("url", ["https://example.com/x", "http://[::1]:9/x", "http://localhost/x"])
def test_https_and_this_machine_are_taken(url: str) -> None:
    assert UrlHook(url).name.startswith("url http")
