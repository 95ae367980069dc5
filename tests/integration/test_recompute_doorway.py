"""What happens at the door of a recompute server: foreign protocols, TLS, tokens, certificates, slow and many."""

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from certificates import Authority
from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.core.listening import bind
from gpupool.recompute import renewing
from gpupool.recompute.credentials import is_loopback, read_tokens, tls_files
from gpupool.recompute.demo import demo_request
from gpupool.recompute.server import doorway
from gpupool.recompute.server.doorway import Speech, recognise
from gpupool.recompute.server.main import listening
from gpupool.recompute.server.settings import RecomputeServerSettings
from polling import eventually
from recompute_stage import ScriptedEngine, Stage, ThreadCrew, stage

PROOF = demo_request().model_dump_json()
TOKEN = "a-token-of-many-characters"
Lines = list[structlog.typing.EventDict]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """What the doorway logs."""
    capture = structlog.testing.LogCapture()
    monkeypatch.setattr(doorway, "log", structlog.wrap_logger(None, processors=[capture]))
    return capture.entries


async def say(port: int, *parts: bytes) -> bytes:
    """Send parts, one at a time, and return all that comes back until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        answer = await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()
        await writer.wait_closed()
    return answer


def events(lines: Lines) -> list[str]:
    return [str(line["event"]) for line in lines]


@pytest.mark.parametrize(
    ("head", "speech"),
    [
        (b"", None),
        (b"\x16", None),
        (b"\x16\x03", Speech.TLS),
        (b"\x16\x03\x01\x00", Speech.TLS),
        (b"\x16\x04\x00\x00", Speech.FRAME),
        (b"GE", None),
        (b"GET ", Speech.HTTP),
        (b"POST", Speech.HTTP),
        (b"GE\x01\x00", Speech.FRAME),
        (bytes(4), Speech.FRAME),
        (b"\x00\x00\x10\x00", Speech.FRAME),
        (b"\xff\xff\xff\xff", Speech.UNKNOWN),
        (b"\x01abc", Speech.UNKNOWN),
    ],
)
def test_four_bytes_tell_what_is_spoken(head: bytes, speech: Speech | None) -> None:
    assert recognise(head) is speech


@given(st.integers(0, (1 << 24) - 1))
def test_every_length_of_a_frame_is_one_except_where_tls_begins(length: int) -> None:
    head = length.to_bytes(4, "little")
    assert recognise(head) is (Speech.TLS if head.startswith(b"\x16\x03") else Speech.FRAME)


@pytest.mark.parametrize(
    "parts", [(b"\x0c\0\0\0opaque bytes",), (b"\x0c", b"\0\0", b"\0opaque"), (bytes(4),)]
)
async def test_a_gigahorse_frame_is_refused_with_one_line_that_says_what_to_do(
    lines: Lines, parts: tuple[bytes, ...]
) -> None:
    async with stage(ScriptedEngine()) as s:
        assert await say(s.port, *parts) == b""
        assert events(lines) == ["gigahorse_client_refused"]
        assert lines[0]["client"] == "127.0.0.1"
        assert "chia_recompute_server" in lines[0]["what_to_do"]
        assert (await s.post("/v1/proofs", PROOF))[0] == 200


@pytest.mark.parametrize(
    ("said", "event"),
    [
        (b"\x16\x03\x01\x00\xa5" + bytes(100), "tls_client_refused"),
        (b"\xff\xfe\xfd\xfc", "unknown_client_refused"),
    ],
)
async def test_other_strangers_are_refused_with_one_line(lines: Lines, said: bytes, event: str) -> None:
    async with stage(ScriptedEngine()) as s:
        assert await say(s.port, said) == b""
        assert events(lines) == [event]


async def test_a_request_that_comes_in_crumbs_is_served(lines: Lines) -> None:
    async with stage(ScriptedEngine()) as s:
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert b" 200 " in await say(s.port, b"G", b"E", request[2:])
    assert lines == []


async def test_who_says_too_little_is_closed_and_nobody_else_notices(lines: Lines) -> None:
    async with stage(ScriptedEngine(), recompute_idle_seconds=0.2) as s:
        assert list(await asyncio.gather(say(s.port), say(s.port, b"PO"))) == [b"", b""]
        assert (await s.post("/v1/proofs", PROOF))[0] == 200
    assert set(events(lines)) == {"silent_connection_closed"}


async def test_who_leaves_without_a_word_leaves_nothing_behind(lines: Lines) -> None:
    async with stage(ScriptedEngine()) as s:
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", s.port)
            writer.close()
            await writer.wait_closed()
        assert (await s.post("/v1/proofs", PROOF))[0] == 200
    assert lines == []


async def test_the_oldest_silent_connection_makes_room() -> None:
    async with stage(ScriptedEngine(), recompute_connections=3) as s:
        silent = [await asyncio.open_connection("127.0.0.1", s.port) for _ in range(4)]
        assert await asyncio.wait_for(silent[0][0].read(), 30) == b""
        assert not silent[3][0].at_eof()
        assert (await s.post("/v1/proofs", PROOF))[0] == 200
        for _, writer in silent:
            writer.close()


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_more_connections_than_allowed_are_closed_while_none_is_idle(lines: Lines) -> None:
    engine = ScriptedEngine()
    engine.gate.clear()
    async with stage(engine, recompute_connections=1) as s:
        working = s.start("/v1/proofs", PROOF)
        await eventually(lambda: engine.asked, 30, "the request being worked on")
        assert await say(s.port) == b""
        assert events(lines) == ["too_many_connections"]
        engine.gate.set()
        assert (await working)[0] == 200


@pytest.mark.parametrize("said", [HEALTH, HEALTH[:-2]])
async def test_the_connection_that_is_idle_for_longest_makes_room(said: bytes) -> None:
    """Nobody keeps others out with connections that are not used, or on which a head never ends."""
    async with stage(ScriptedEngine(), recompute_connections=3) as s:
        idle = []
        for _ in range(9):
            reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
            idle.append((reader, writer))
            writer.write(said)
            if said == HEALTH:
                assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            assert (await s.post("/v1/proofs", PROOF, Connection="close"))[0] == 200
        assert await asyncio.wait_for(idle[0][0].read(), 30) is not None
        for _, writer in idle:
            writer.close()


async def test_ipv6() -> None:
    given = RecomputeServerSettings.model_validate({"recompute_port": 0, "recompute_threads": 1})
    listener = bind("the recompute server", "::1", 0, "GPUPOOL_RECOMPUTE")
    crew = ThreadCrew(ScriptedEngine(), 1)
    async with (
        listening(given, "inst-6", listener, crew) as (_, port),
        aiohttp.ClientSession() as http,
        http.post(f"http://[::1]:{port}/v1/proofs", data=PROOF) as answer,
    ):
        assert answer.status == 200


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def encrypted(authority: Authority, *, mutual: bool = False) -> AsyncIterator[Stage]:
    pair = authority.issue("server")
    async with stage(
        ScriptedEngine(),
        recompute_tls_cert=pair.certificate,
        recompute_tls_key=pair.key,
        recompute_client_ca=authority.certificate if mutual else None,
    ) as s:
        s.url = s.url.replace("http:", "https:")
        yield s


async def status(s: Stage, context: ssl.SSLContext) -> int:
    async with s.http.post(s.url + "/v1/proofs", data=PROOF, ssl=context) as answer:
        return answer.status


async def test_tls_is_spoken_and_nothing_else(authority: Authority, lines: Lines) -> None:
    async with encrypted(authority) as s:
        assert await status(s, ssl.create_default_context(cafile=str(authority.certificate))) == 200
        assert await say(s.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        assert await say(s.port, b"\x0c\0\0\0opaque bytes") == b""
        assert events(lines) == ["plain_client_refused", "gigahorse_client_refused"]


def test_old_tls_is_refused(authority: Authority) -> None:
    pair = authority.issue("server")
    files = tls_files(pair.certificate, pair.key, None)
    assert files is not None
    assert files.context().minimum_version is ssl.TLSVersion.TLSv1_2


async def test_a_renewed_certificate_is_taken_while_connections_live_on(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewing, "LOOK_SECONDS", 0.0)
    context = ssl.create_default_context(cafile=str(authority.certificate))

    async def connect(s: Stage) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", s.port, ssl=context)
        return reader, writer, writer.get_extra_info("peercert")["serialNumber"]

    async def shown(s: Stage) -> str:
        _, writer, serial = await connect(s)
        writer.transport.abort()
        return serial

    async with encrypted(authority) as s:
        reader, writer, before = await connect(s)
        renewed = authority.issue("renewed")
        os.replace(renewed.key, authority.folder / "server.key")
        assert await shown(s) == before, "key and certificate do not belong together yet"
        os.replace(renewed.certificate, authority.folder / "server.pem")
        assert await shown(s) != before
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.transport.abort()


async def test_a_broken_handshake_is_one_line(authority: Authority, lines: Lines) -> None:
    async with encrypted(authority) as s:
        await say(s.port, b"\x16\x03\x01\x00\x05hello")
        await eventually(lambda: events(lines) == ["tls_handshake_failed"])


async def test_a_client_that_does_not_trust_the_server_is_told_on_the_servers_side_too(
    authority: Authority, lines: Lines
) -> None:
    async with encrypted(authority) as s:
        with pytest.raises(aiohttp.ClientError):
            await status(s, ssl.create_default_context())
        await eventually(lambda: events(lines) == ["tls_handshake_failed"])
    assert "does not accept this certificate" in lines[0]["reason"]
    assert "--tls-ca" in lines[0]["what_to_do"]


async def test_mutual_tls_lets_in_who_has_a_certificate_of_the_authority(
    authority: Authority, tmp_path: Path, lines: Lines
) -> None:
    stranger = Authority(tmp_path, "stranger").issue("eve")
    friend = authority.issue("harvester")
    async with encrypted(authority, mutual=True) as s:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(stranger.certificate, stranger.key)
        with pytest.raises(aiohttp.ClientError):
            await status(s, context)
        context = ssl.create_default_context(cafile=str(authority.certificate))
        assert await status(s, context) == 401
        async with s.http.get(s.url + "/readyz", ssl=context) as answer:
            assert answer.status == 200, "whoever watches the process has no certificate"
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(friend.certificate, friend.key)
        assert await status(s, context) == 200
    assert set(events(lines)) == {"tls_handshake_failed"}


def test_files_that_make_no_tls_are_told(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("server")
    assert tls_files(None, None, None) is None
    for cert, key, ca in ((pair.certificate, None, None), (None, pair.key, None), (None, None, pair.key)):
        with pytest.raises(InvalidInputError, match="both"):
            tls_files(cert, key, ca)
    other = authority.issue("other")
    for cert, key, ca, word in (
        (tmp_path / "none", pair.key, None, "No such file"),
        (pair.certificate, other.key, None, "server"),
        (pair.certificate, pair.key, tmp_path / "none", "client CA"),
    ):
        files = tls_files(cert, key, ca)
        assert files is not None
        with pytest.raises(EnvironmentProblemError, match=word):
            files.context()


def token_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return path


async def test_with_a_token_file_only_its_tokens_are_served(tmp_path: Path) -> None:
    path = token_file(tmp_path, f"{TOKEN}\n\nanother-long-enough-token\n")
    engine = ScriptedEngine()
    async with stage(engine, recompute_token_file=path) as s:
        for header in ("", "Bearer", f"Basic {TOKEN}", "Bearer wrong", f"Bearer {TOKEN}x", "Bearer \u00e9"):
            code, problem = await s.post("/v1/proofs", PROOF, Authorization=header)
            assert (code, problem["code"]) == (401, "unauthorized")
            assert TOKEN not in json.dumps(problem)
            shown = header.startswith("Bearer ")
            assert ("the one in the request" in str(problem["detail"])) == shown
            async with s.http.get(s.url + "/v1/server", headers={"Authorization": header}) as answer:
                told = answer.headers["WWW-Authenticate"]
            assert told == ('Bearer error="invalid_token"' if shown else "Bearer")
        assert engine.asked == []
        assert (await s.post("/v1/proofs", PROOF, Authorization=f"Bearer {TOKEN}"))[0] == 200
        assert (await s.post("/v1/proofs", PROOF, Authorization="bearer another-long-enough-token"))[0] == 200
        for route, expected in (("/healthz", 200), ("/readyz", 200), ("/v1/server", 401), ("/metrics", 401)):
            async with s.http.get(s.url + route) as answer:
                assert answer.status == expected


async def test_tokens_are_renewed_while_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old and new live side by side for as long as both are in the file; a file of no use changes nothing."""
    monkeypatch.setattr(renewing, "LOOK_SECONDS", 0.0)
    old, new = f"Bearer {TOKEN}", "Bearer a-renewed-token-of-many-characters"
    path = token_file(tmp_path, TOKEN)
    async with stage(ScriptedEngine(), recompute_token_file=path) as s:

        async def let_in() -> list[bool]:
            answers = [await s.post("/v1/proofs", PROOF, Authorization=token) for token in (old, new)]
            return [status == 200 for status, _ in answers]

        assert await let_in() == [True, False]
        path.write_text(f"{TOKEN}\n{new.split()[1]}\n")
        assert await let_in() == [True, True]
        path.write_text("short\n")
        assert await let_in() == [True, True]
        path.write_text(f"{new.split()[1]}\n")
        assert await let_in() == [False, True]
        path.unlink()
        assert await let_in() == [False, True]


@pytest.mark.parametrize(
    ("text", "mode", "word"),
    [
        ("", 0o600, "no token"),
        ("short\n", 0o600, "short"),
        (TOKEN, 0o640, "other users"),
        ("é" * 20, 0o600, "ASCII"),
    ],
)
def test_a_token_file_that_protects_nothing_is_refused(
    tmp_path: Path, text: str, mode: int, word: str
) -> None:
    with pytest.raises(EnvironmentProblemError, match=word):
        read_tokens(token_file(tmp_path, text, mode))


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblemError, match="cannot be read"):
        read_tokens(tmp_path / "none")


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
    ],
)
def test_loopback_is_known(host: str, inside: bool) -> None:
    assert is_loopback(host) is inside


async def test_the_listening_socket_is_closed_at_the_end() -> None:
    async with stage(ScriptedEngine()) as s:
        pass
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", s.port)) != 0


async def test_work_that_cannot_be_done_in_time_is_refused_at_once_by_measured_speed() -> None:
    engine = ScriptedEngine()
    async with stage(engine) as s:
        for _ in range(8):
            s.learn(2.0)
        code, problem = await s.post("/v1/proofs", PROOF, X_Deadline_Ms="500")
        assert (code, problem["code"]) == (504, "deadline")
        assert "takes this server 2000 ms" in str(problem["detail"])
        assert engine.asked == []
        assert (await s.post("/v1/proofs", PROOF, X_Deadline_Ms="5000"))[0] == 200


async def test_waiting_counts_as_time() -> None:
    engine = ScriptedEngine()
    engine.gate.clear()
    async with stage(engine) as s:
        s.learn(30.0)
        first = s.start("/v1/proofs", PROOF, X_Deadline_Ms="50000")
        await eventually(lambda: engine.asked)
        code, problem = await s.post("/v1/proofs", PROOF, X_Deadline_Ms="40000")
        assert (code, problem["code"]) == (504, "deadline")
        engine.gate.set()
        assert (await first)[0] == 200
    assert len(engine.asked) == 1


async def test_a_slow_time_is_not_held_against_a_server_for_ever() -> None:
    async with stage(ScriptedEngine()) as s:
        s.learn(2.0)
        for _ in range(40):
            code, _ = await s.post("/v1/proofs", PROOF, X_Deadline_Ms="1000")
            if code == 200:
                return
    raise AssertionError("it never tried again")


async def test_every_request_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async with stage(ScriptedEngine()) as s:
        await s.post("/v1/proofs", PROOF, X_Request_Id="mine-1")
        await s.post("/v1/proofs", "{", X_Request_Id="mine-2")
        await s.post("/v1/proofs", PROOF, X_Deadline_Ms="never", X_Request_Id="mine-3")
    printed = capsys.readouterr().out.splitlines()
    good, bad, late = [line for line in printed if "] Request from " in line]
    assert "Request from 127.0.0.1 for K32 C3 took " in good
    assert good.endswith("(used_gpu = 0, is_fail = 0, engine = numba, result = ok, id = mine-1)")
    for line, name in ((bad, "mine-2"), (late, "mine-3")):
        assert "for K? C? took " in line
        assert line.endswith(f"is_fail = 1, engine = none, result = invalid_input, id = {name})")
