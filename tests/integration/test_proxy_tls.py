"""The proxy's border: TLS towards nodes and clients, tokens, certificates, renewal; each fault is one clear line."""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest
import structlog

from certificates import Authority, Pair
from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.recompute import renewing
from gpupool.recompute.proxy import border, clients, dispatching, frame_clients, http_clients, watching
from gpupool.recompute.proxy.border import BorderFiles
from gpupool.recompute.proxy.trust import Trust, trust_of
from polling import eventually
from proxy_stage import FrameNode, HttpNode, Node, ProxyStage, frame, nodes, proxy, read_frame

QUESTION = json.dumps({"plot_id": "00" * 32, "k": 32, "level": 3, "line_points": ["1"] * 32}).encode()
TOKEN = "a-token-of-many-characters"
Lines = list[structlog.typing.EventDict]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """What the proxy logs."""
    capture = structlog.testing.LogCapture()
    for module in (border, clients, dispatching, frame_clients, http_clients, renewing, watching):
        monkeypatch.setattr(module, "log", structlog.wrap_logger(None, processors=[capture]))
    return capture.entries


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def secured(node: Node, pair: Pair, *, client_ca: Path | None = None) -> None:
    node.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    node.tls.load_cert_chain(pair.certificate, pair.key)
    if client_ca is not None:
        node.tls.load_verify_locations(client_ca)
        node.tls.verify_mode = ssl.CERT_REQUIRED


def token_file(folder: Path, text: str = TOKEN, name: str = "token") -> Path:
    path = folder / name
    path.touch(0o600)
    path.write_text(text)
    return path


def border_of(pair: Pair, **more: object) -> BorderFiles:
    return BorderFiles(pair.certificate, pair.key, **more)  # type: ignore[arg-type]


def events(lines: Lines) -> set[str]:
    return {str(line["event"]) for line in lines}


async def ask(stage: ProxyStage, context: ssl.SSLContext, **headers: str) -> int:
    """Ask for a proof over TLS and return the status."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", stage.port, ssl=context, server_hostname="localhost"
    )
    try:
        named = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST /v1/proofs HTTP/1.1\r\nHost: x\r\n{named}Content-Length: {len(QUESTION)}\r\n\r\n"
        writer.write(head.encode() + QUESTION)
        return int((await asyncio.wait_for(reader.readline(), 20)).split()[1])
    finally:
        writer.transport.abort()


# -- towards nodes -------------------------------------------------------------------------------------------


def ways_to_trust(authority: Authority, pair: Pair) -> dict[str, Callable[[], str]]:
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())
    return {
        "authority": lambda: f"tls={authority.certificate}",
        "fingerprint": lambda: f"tls=sha256:{sha256(der).hexdigest()}",
        "self": lambda: f"tls={pair.certificate}",
    }


@pytest.mark.parametrize("way", ["authority", "fingerprint"])
async def test_a_node_is_reached_over_tls_and_its_session_resumed(
    authority: Authority, tmp_path: Path, way: str
) -> None:
    pair, node = authority.issue("node"), HttpNode()
    node.token = TOKEN
    secured(node, pair)
    async with nodes(node):
        told = f"{node.address} {ways_to_trust(authority, pair)[way]()} token-file={token_file(tmp_path)}"
        async with proxy(told) as stage:
            await stage.known(1)
            for _ in range(5):
                assert (await stage.http("POST", "/v1/proofs", QUESTION))[0] == 200
            opened = node.connections
            assert opened <= 3, "connections are kept, so handshakes are not paid for each request"
            stage.core.directory.nodes[node.address].close_idle()
            assert (await stage.http("POST", "/v1/proofs", QUESTION))[0] == 200
            assert node.resumed == 1
    assert {headers["authorization"] for headers in node.headers} == {f"Bearer {TOKEN}"}


async def test_a_node_may_want_a_certificate(authority: Authority) -> None:
    pair, own, node = authority.issue("node"), authority.issue("proxy"), HttpNode()
    secured(node, pair, client_ca=authority.certificate)
    async with nodes(node):
        told = f"{node.address} tls={authority.certificate} cert={own.certificate} key={own.key}"
        async with proxy(told) as stage:
            await stage.known(1)
            assert (await stage.http("POST", "/v1/proofs", QUESTION))[0] == 200


def faulty(authority: Authority, folder: Path, fault: str) -> tuple[Pair, str]:
    """Return a node's identity and the option under which the proxy must not accept it."""
    other = Authority(folder, "other")
    way = f"tls={authority.certificate}"
    if fault == "expired":
        return authority.issue("expired", days=(-9, -2)), way
    if fault == "not valid yet":
        return authority.issue("early", days=(2, 9)), way
    if fault == "another name":
        return authority.issue("elsewhere", host="elsewhere.example"), way
    if fault == "signed by itself":
        return Pair(other.certificate, other.write_key()), way
    if fault == "not trusted here":
        return other.issue("stranger"), way
    return authority.issue("node"), "tls=sha256:" + "00" * 32


FAULTS = [
    "expired", "not valid yet", "another name", "signed by itself", "not trusted here", "another certificate",
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_node_that_cannot_prove_itself_gets_nothing_and_one_line_says_why(
    authority: Authority, tmp_path: Path, lines: Lines, fault: str
) -> None:
    pair, way = faulty(authority, tmp_path, fault)
    bad, good = HttpNode(), HttpNode()
    secured(bad, pair)
    async with nodes(bad, good), proxy(f"{bad.address} {way} kind=http", good) as stage:
        await stage.known(2)
        answers = await asyncio.gather(*(stage.http("POST", "/v1/proofs", QUESTION) for _ in range(6)))
        await eventually(lambda: any(line.get("node") == bad.address for line in lines))
    assert {answer[0] for answer in answers} == {200}
    assert bad.seen == [], "no question, and no token, goes to a stranger"
    told = [line for line in lines if line.get("node") == bad.address]
    assert len(told) == 1
    assert fault in told[0]["why"]
    assert told[0]["remedy"]


async def test_a_node_that_wants_a_token_is_told_by_its_name(lines: Lines) -> None:
    node = HttpNode()
    node.token = TOKEN
    async with nodes(node), proxy(f"{node.address} kind=http") as stage:
        status, _, body = await stage.http("POST", "/v1/proofs", QUESTION)
    assert (status, json.loads(body)["code"]) == (502, "locked_out")
    assert any("wants a token" in str(line.get("why")) for line in lines)


async def test_a_clients_own_token_is_tried_at_another_server_where_one_does_not_know_it() -> None:
    renewed, late = HttpNode(), HttpNode()
    renewed.token, late.token = "a-new-token-of-many-characters", TOKEN
    async with (
        nodes(renewed, late),
        proxy(f"{renewed.address} kind=http", f"{late.address} kind=http") as stage,
    ):
        for known_to_one in (TOKEN, renewed.token) * 4:
            got = await stage.http("POST", "/v1/proofs", QUESTION, Authorization=f"Bearer {known_to_one}")
            assert got[0] == 200
        got = await stage.http("POST", "/v1/proofs", QUESTION, Authorization="Bearer nobody-knows-this-token")
        assert got[0] == 401
        assert all(node.trouble is None for node in stage.core.directory.nodes.values())


async def test_a_token_that_travels_in_the_clear_is_told_once(tmp_path: Path, lines: Lines) -> None:
    near, far = f"127.0.0.1:1 token-file={token_file(tmp_path)}", f"192.0.2.1 token-file={tmp_path / 'token'}"
    async with proxy(near, far, f"192.0.2.2 tls token-file={tmp_path / 'token'}"):
        await eventually(lambda: "token_in_clear" in events(lines))
    assert [line["node"] for line in lines if line["event"] == "token_in_clear"] == ["192.0.2.1:11989"]


async def test_a_node_that_takes_tls_only_is_told(authority: Authority, lines: Lines) -> None:
    node = HttpNode()
    secured(node, authority.issue("node"))
    async with nodes(node), proxy(node) as stage:
        await eventually(lambda: "node_unreachable" in events(lines), 20, "the node being looked at")
        assert not stage.core.directory.nodes[node.address].kinds
    assert "TLS only" in lines[0]["why"]
    assert "tls=CA_FILE" in lines[0]["remedy"]


async def test_proxies_pass_frames_and_requests_to_proxies_over_tls(
    authority: Authority, lines: Lines
) -> None:
    pair, theirs, ours = authority.issue("inner"), FrameNode(), HttpNode()
    async with (
        nodes(theirs, ours),
        proxy(theirs, ours, border=border_of(pair, client_ca=authority.certificate)) as inner,
    ):
        await inner.known(2)
        own = authority.issue("outer")
        told = f"127.0.0.1:{inner.port} tls={authority.certificate} cert={own.certificate} key={own.key}"
        async with proxy(told) as outer:
            await outer.known(1)
            await eventually(lambda: len(outer.core.directory.nodes[f"127.0.0.1:{inner.port}"].kinds) == 2)
            assert await outer.ask(b"closed to us") == b"re:closed to us"
            assert await outer.ask(b"x" * 60_000) == b"re:" + b"x" * 60_000
            assert (await outer.http("POST", "/v1/proofs", QUESTION))[0] == 200
            with pytest.raises(asyncio.IncompleteReadError):
                await inner.ask(b"plain, and without a certificate")
        async with proxy(f"127.0.0.1:{inner.port} tls={authority.certificate} kind=http") as outer:
            assert (await outer.http("POST", "/v1/proofs", QUESTION))[0] == 502
    assert any("wants a client certificate" in str(line.get("why")) for line in lines)


# -- towards clients -----------------------------------------------------------------------------------------


@asynccontextmanager
async def guarded(files: BorderFiles) -> AsyncIterator[tuple[ProxyStage, HttpNode, FrameNode]]:
    ours, theirs = HttpNode(), FrameNode()
    async with nodes(ours, theirs), proxy(ours, theirs, border=files) as stage:
        await stage.known(2)
        yield stage, ours, theirs


async def test_one_port_takes_plain_and_tls_frames_and_http(authority: Authority) -> None:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    async with guarded(border_of(authority.issue("proxy"))) as (stage, _, _):
        assert await ask(stage, context) == 200
        assert (await stage.http("POST", "/v1/proofs", QUESTION))[0] == 200
        assert await stage.ask(b"plain") == b"re:plain"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", stage.port, ssl=context, server_hostname="localhost"
        )
        for payload in (b"over TLS", b"y" * 60_000):
            writer.write(frame(payload))
            assert (await read_frame(reader))[4:] == b"re:" + payload
        writer.transport.abort()
        await eventually(lambda: not stage.core.clients, 20, "the clients being gone")


async def test_with_require_tls_plain_clients_are_told(authority: Authority, lines: Lines) -> None:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    async with guarded(border_of(authority.issue("proxy"), require_tls=True)) as (stage, _, theirs):
        status, _, body = await stage.http("POST", "/v1/proofs", QUESTION)
        assert (status, json.loads(body)["code"]) == (403, "tls_required")
        with pytest.raises(asyncio.IncompleteReadError):
            await stage.ask(b"plain")
        assert (await stage.http("GET", "/readyz"))[0] == 200
        assert await ask(stage, context) == 200
    assert theirs.seen == []
    assert {"frames_refused", "client_refused"} <= events(lines)


async def test_tokens_are_wanted_of_requests_and_go_no_further(
    authority: Authority, tmp_path: Path, lines: Lines
) -> None:
    files = border_of(authority.issue("proxy"), tokens=token_file(tmp_path))
    context = ssl.create_default_context(cafile=str(authority.certificate))
    async with guarded(files) as (stage, ours, theirs):
        assert await ask(stage, context) == 401
        assert await ask(stage, context, Authorization="Bearer wrong-but-long-enough") == 401
        assert await ask(stage, context, Authorization=f"Bearer {TOKEN}") == 200
        assert (await stage.http("GET", "/v1/nodes"))[0] == 401
        with pytest.raises(asyncio.IncompleteReadError):
            await stage.ask(b"frames have no place for a token")
    assert [headers.get("authorization") for headers in ours.headers] == [None]
    assert theirs.seen == []
    assert all(TOKEN not in str(line) for line in lines)


async def test_client_certificates_are_wanted_and_their_lack_is_told(
    authority: Authority, tmp_path: Path, lines: Lines
) -> None:
    friend, stranger = authority.issue("friend"), Authority(tmp_path, "other").issue("stranger")
    async with guarded(border_of(authority.issue("proxy"), client_ca=authority.certificate)) as (stage, *_):
        context = ssl.create_default_context(cafile=str(authority.certificate))
        assert await ask(stage, context) == 401
        context.load_cert_chain(friend.certificate, friend.key)
        assert await ask(stage, context) == 200
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.load_cert_chain(stranger.certificate, stranger.key)
        with pytest.raises((OSError, IndexError)):
            await ask(stage, context)
        await eventually(lambda: "tls_handshake_failed" in events(lines))
    told = next(line for line in lines if line["event"] == "tls_handshake_failed")
    assert "not trusted" in told["why"]


async def test_a_client_that_does_not_trust_the_proxy_is_told_on_the_proxys_side_too(
    authority: Authority, lines: Lines
) -> None:
    async with guarded(border_of(authority.issue("proxy"))) as (stage, *_):
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(stage, ssl.create_default_context())
        await eventually(lambda: "tls_handshake_failed" in events(lines))
    assert "does not accept this certificate" in lines[-1]["why"]
    assert "--tls-ca" in lines[-1]["remedy"]


async def test_a_renewed_certificate_is_taken_while_connections_live_on(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    monkeypatch.setattr(renewing, "LOOK_SECONDS", 0.0)
    first, second = authority.issue("first"), authority.issue("second")
    context = ssl.create_default_context(cafile=str(authority.certificate))

    async def serial(stage: ProxyStage) -> str:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", stage.port, ssl=context, server_hostname="localhost"
        )
        shown = writer.get_extra_info("peercert")["serialNumber"]
        writer.transport.abort()
        return str(shown)

    async with guarded(border_of(first)) as (stage, *_):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", stage.port, ssl=context, server_hostname="localhost"
        )
        before = await serial(stage)
        first.certificate.write_text("half written")
        assert await serial(stage) == before
        os.replace(second.key, first.key)
        os.replace(second.certificate, first.certificate)
        assert await serial(stage) != before
        writer.write(frame(b"still here"))
        assert (await read_frame(reader))[4:] == b"re:still here"
        writer.transport.abort()
    assert {"renewal_refused", "files_renewed"} <= events(lines)


async def test_rubbish_after_the_first_bytes_of_tls_ends_one_connection(
    authority: Authority, lines: Lines
) -> None:
    async with guarded(border_of(authority.issue("proxy"))) as (stage, *_):
        for rubbish in (b"\x16\x03\x01\x00\x05hello", b"\x16\x03" + bytes(600)):
            await stage.exchange(rubbish)
        assert (await stage.http("POST", "/v1/proofs", QUESTION))[0] == 200
    assert "tls_handshake_failed" in events(lines)


async def test_a_proxy_without_tls_says_so(lines: Lines) -> None:
    async with guarded(BorderFiles()) as (stage, *_):
        assert await stage.exchange(b"\x16\x03\x01\x00\xa5" + bytes(100)) == b""
    assert events(lines) & {"tls_refused"}


# -- what the operator gives ---------------------------------------------------------------------------------


def test_words_about_a_node() -> None:
    default = Trust(tls=True, ca=Path("/ca"), token_file=Path("/t"))
    assert trust_of([], default) == default
    assert trust_of(["plain"], default) == Trust(token_file=Path("/t"))
    assert trust_of(["tls"], default) == Trust(tls=True, token_file=Path("/t"))
    pinned = trust_of(["tls=sha256:" + ":".join(["AB"] * 32), "server-name=x"], default)
    assert (pinned.pin, pinned.ca, pinned.server_name) == (b"\xab" * 32, None, "x")


@pytest.mark.parametrize(
    "words", [["tls=sha256:12"], ["cert=/c", "tls"], ["cert=/c", "key=/k"], ["weight"], ["token-file="]]
)
def test_words_that_make_no_sense_are_refused(words: list[str]) -> None:
    with pytest.raises(InvalidInputError):
        trust_of(words, Trust())


async def test_files_that_are_of_no_use_end_the_start(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("proxy")
    open_key = tmp_path / "open.key"
    open_key.write_text(pair.key.read_text())
    open_key.chmod(0o644)
    short = token_file(tmp_path, "short", "short")
    for files in (
        BorderFiles(pair.certificate, open_key),
        BorderFiles(pair.certificate, tmp_path / "none"),
        BorderFiles(tokens=short),
        BorderFiles(require_tls=True),
        BorderFiles(client_ca=authority.certificate),
    ):
        with pytest.raises((EnvironmentProblemError, InvalidInputError)):
            async with proxy("127.0.0.1:1", border=files):
                pass
    with pytest.raises(EnvironmentProblemError):
        async with proxy(f"127.0.0.1:1 tls={tmp_path / 'none'}"):
            pass
    with pytest.raises(EnvironmentProblemError):
        async with proxy("127.0.0.1:1", trust=Trust(token_file=short)):
            pass


async def test_an_open_proxy_warns_at_its_start(lines: Lines, tmp_path: Path) -> None:
    for host, files, warns in (
        ("127.0.0.1", BorderFiles(), False),
        ("0.0.0.0", BorderFiles(), True),
        ("0.0.0.0", BorderFiles(tokens=token_file(tmp_path)), False),
    ):
        lines.clear()
        async with proxy("127.0.0.1:1", host=host, border=files):
            pass
        assert ("open_to_everyone" in events(lines)) is warns
