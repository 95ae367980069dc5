"""What is beyond a limit of HTTP or JSON is answered with the limit in the text, by every server in its own form."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

import control_stage
import gateway_stage
import recompute_stage
from gpupool.contracts import bad_heads, recompute
from gpupool.control.http import limits
from gpupool.control.serving import MAX_HEAD_BYTES
from gpupool.core.nesting import MOST_LEVELS
from gpupool.gateway import reading

PATIENCE = 30.0
SECRET = "Bearer-of-a-secret"


def get(more: bytes = b"", target: bytes = b"/healthz") -> bytes:
    """A request whose head has more in it."""
    return b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + more + b"\r\n"


def post(path: str, body: bytes, *, length: int | None = None, token: str = "") -> bytes:
    """A request with a body, or one that announces it."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([*lines, "", ""]).encode() + body


LONG = get(b"Authorization: " + SECRET.encode() * 600 + b"\r\n")
MANY = get(b"".join(b"X-%d: y\r\n" % number for number in range(200)))
FAR = get(target=b"/" + b"y" * 9000)
DEEP = {
    "nested": b"[" * 300,
    "very deep": b'{"a":' * 5000,
}
CASES: dict[str, list[tuple[bytes, int, int]]] = {
    "gateway": [
        (LONG, 431, bad_heads.MAX_LINE_BYTES),
        (MANY, 431, bad_heads.MAX_HEADERS),
        (FAR, 431, bad_heads.MAX_LINE_BYTES),
        (post("/v1/chat/completions", DEEP["nested"]), 400, reading.MOST_LEVELS),
        (post("/v1/embeddings", DEEP["very deep"]), 400, reading.MOST_LEVELS),
        (post("/v1/chat/completions", b"{", length=10**9), 413, reading.MAX_BODY_BYTES),
    ],
    "recompute": [
        (LONG, 431, bad_heads.MAX_LINE_BYTES),
        (MANY, 431, bad_heads.MAX_HEADERS),
        (FAR, 431, bad_heads.MAX_LINE_BYTES),
        (post("/v1/proofs", DEEP["nested"]), 400, MOST_LEVELS),
        (post("/v1/qualities", DEEP["very deep"]), 400, MOST_LEVELS),
        (post("/v1/proofs", b"{", length=10**9), 413, recompute.BODY_LIMIT),
    ],
    "control": [
        (get(b"X: " + b"y" * 40_000 + b"\r\n"), 431, limits.MAX_HEADER_BYTES),
        (MANY, 431, limits.MAX_HEADERS),
        (FAR, 431, limits.MAX_TARGET_BYTES),
        (get(b"X: " + b"y" * 200_000), 400, MAX_HEAD_BYTES),
        (post("/v1/workloads", DEEP["nested"], token="TOKEN"), 400, MOST_LEVELS),
        (post("/v1/workloads", b"{", length=10**9, token="TOKEN"), 413, limits.MAX_BODY_BYTES),
    ],
}


@asynccontextmanager
async def server(role: str, folder: Path) -> AsyncIterator[tuple[int, str]]:
    """Run a server; give its port and a token it takes."""
    if role == "gateway":
        async with gateway_stage.stage(folder) as gateway:
            yield int(gateway.url.rsplit(":", 1)[1]), ""
    elif role == "control":
        async with control_stage.stage(folder) as control:
            yield int(control.url.rsplit(":", 1)[1]), control.tokens.operator
    else:
        async with recompute_stage.stage(recompute_stage.ScriptedEngine()) as on:
            yield on.port, ""


async def send(port: int, request: bytes) -> tuple[int, bytes]:
    """Send the bytes; return status and body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        async with asyncio.timeout(PATIENCE):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            names = {line.split(b":")[0].lower(): line for line in head.split(b"\r\n")[1:] if line}
            length = int(names[b"content-length"].split(b":")[1])
            return int(head.split()[1]), await reader.readexactly(length)


def words(role: str, body: bytes) -> str:
    """Return the sentence of an answer, which must have its server's form; control's parser alone speaks plain text."""
    if not body.startswith(b"{"):
        assert role == "control"
        return body.decode()
    answer = json.loads(body)
    return str(answer["error"]["message"] if role == "gateway" else answer["detail"])


@pytest.mark.parametrize("role", CASES)
async def test_what_is_too_much_is_answered_with_the_limit(role: str, tmp_path: Path) -> None:
    async with server(role, tmp_path) as (port, token):
        for request, status, limit in CASES[role]:
            found, body = await send(port, request.replace(b"TOKEN", token.encode()))
            assert (found, str(limit) in words(role, body)) == (status, True), (request[:60], body)


@pytest.mark.parametrize("role", ["gateway", "recompute"])
async def test_a_head_that_is_refused_leaves_nothing_of_it_in_the_log(
    role: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with server(role, tmp_path) as (port, _):
        assert (await send(port, LONG))[0] == 431
        assert (await send(port, b"nonsense\r\n\r\n"))[0] == 400
    out, err = capfd.readouterr()
    assert "request_head_refused" in out + err + caplog.text
    assert SECRET[:10] not in out + err + caplog.text
    assert not caplog.records or all(record.exc_info is None for record in caplog.records)


async def test_brackets_that_a_wide_encoding_hides_are_too_deep_all_the_same(tmp_path: Path) -> None:
    hidden = ('["\\\\",' + "[" * 6000).encode("utf-16-le")
    async with server("gateway", tmp_path) as (port, _):
        status, body = await send(port, post("/v1/chat/completions", hidden))
    assert status == 400
    assert f"deeper than {reading.MOST_LEVELS} levels" in words("gateway", body)
