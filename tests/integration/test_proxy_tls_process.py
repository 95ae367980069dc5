"""The proxy's flags for TLS, tokens and checks, given to real processes; its checker ends with it, however it ends."""

import asyncio
import signal
import ssl
from pathlib import Path

import pytest

from certificates import Authority
from gpupool.recompute.demo import demo_request, known_proof
from polling import eventually
from proxy_program import COMMAND, program
from proxy_stage import HttpNode, nodes

QUESTION = demo_request().model_dump_json(exclude_none=True).encode()
TOKEN = "a-token-of-many-characters"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def ask(port: int, context: ssl.SSLContext, token: str) -> int:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    try:
        head = f"POST /v1/proofs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        writer.write(f"{head}Content-Length: {len(QUESTION)}\r\n\r\n".encode() + QUESTION)
        return int((await asyncio.wait_for(reader.readline(), 20)).split()[1])
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_flags_encrypt_both_sides_and_the_checker_ends_with_the_proxy(
    free_port: int, tmp_path: Path, end: signal.Signals
) -> None:
    authority = Authority(tmp_path)
    served, own, node = authority.issue("server"), authority.issue("proxy"), HttpNode()
    node.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    node.tls.load_cert_chain(served.certificate, served.key)
    node.token, node.body = TOKEN, {"proof": [f"{x:x}" for x in known_proof().xs], "checked": "challenge"}
    for name in ("servers", "clients"):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(TOKEN if name == "servers" else TOKEN[::-1])
    context = ssl.create_default_context(cafile=str(authority.certificate))
    async with nodes(node):
        flags = {
            "-p": free_port,
            "-n": node.address,
            "--node-tls": authority.certificate,
            "--node-token-file": tmp_path / "servers",
            "--tls-cert": own.certificate,
            "--tls-key": own.key,
            "--client-tokens": tmp_path / "clients",
        }
        words = [str(word) for pair in flags.items() for word in pair]
        async with program(COMMAND, "recompute", "proxy", *words) as started:
            await started.listening()

            async def answered() -> bool:
                return await ask(free_port, context, TOKEN[::-1]) == 200

            await eventually(answered, 30, "an answer over TLS on both sides")
            assert await ask(free_port, context, TOKEN) == 401
            checkers = children_of(started.process.pid)
            assert len(checkers) == 1
            started.process.send_signal(end)
            await started.ended()
            await eventually(lambda: not any(runs(pid) for pid in checkers), 20, "the end of the checker")
    assert {headers["authorization"] for headers in node.headers} == {f"Bearer {TOKEN}"}
    assert all(TOKEN not in line and TOKEN[::-1] not in line for line in [*started.log, *started.out])


async def test_a_secret_that_others_can_read_ends_the_start_with_one_line(
    free_port: int, tmp_path: Path
) -> None:
    path = tmp_path / "tokens"
    path.write_text(TOKEN)
    path.chmod(0o644)
    words = ["-p", str(free_port), "-n", "localhost", "--client-tokens", str(path)]
    async with program(COMMAND, "recompute", "proxy", *words) as started:
        assert await started.ended() == 3
    assert any("can be opened by other users" in line for line in started.log)
    assert any(f"chmod 600 {path}" in line for line in started.log)
