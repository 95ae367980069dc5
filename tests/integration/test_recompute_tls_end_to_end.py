"""From our client over a proxy to a server, each hop over TLS; what is wrong is named by `doctor` on the client's side."""

import hashlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from certificates import Authority
from gpupool.cli.checks.recompute import check_hosts
from gpupool.core.errors import EnvironmentProblemError, GpupoolError, InvalidInputError
from gpupool.recompute.client import AsyncClient
from gpupool.recompute.client.checking import check_host
from gpupool.recompute.client.contact import Found, contact
from gpupool.recompute.client.credentials import Credentials
from gpupool.recompute.client.hosts import Host
from gpupool.recompute.client.options import ClientOptions
from gpupool.recompute.client.questions import question_of
from gpupool.recompute.demo import demo_request, known_proof
from gpupool.recompute.proxy.border import BorderFiles
from gpupool.recompute.variables import ChiaposVariables
from proxy_stage import ProxyStage, proxy
from recompute_stage import ScriptedEngine, stage

SERVER_TOKEN = "the-servers-own-token"
CLIENT_TOKEN = "a-token-for-harvesters"


def secret(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.touch(0o600)
    path.write_text(text)
    return path


@asynccontextmanager
async def chain(folder: Path, authority: Authority, **proxy_certificate: object) -> AsyncIterator[ProxyStage]:
    """Run a server (TLS, token, mutual) behind a proxy (TLS, another token)."""
    servers, proxies = authority.issue("server"), authority.issue("proxy", **proxy_certificate)  # type: ignore[arg-type]
    async with stage(
        ScriptedEngine(),
        recompute_tls_cert=servers.certificate,
        recompute_tls_key=servers.key,
        recompute_client_ca=authority.certificate,
        recompute_token_file=secret(folder, "server-token", SERVER_TOKEN),
    ) as server:
        shown = authority.issue("shown")
        node = (
            f"127.0.0.1:{server.port} tls={authority.certificate} cert={shown.certificate} key={shown.key}"
            f" token-file={folder / 'server-token'}"
        )
        border = BorderFiles(
            proxies.certificate, proxies.key, tokens=secret(folder, "client-token", CLIENT_TOKEN)
        )
        async with proxy(node, border=border, check_answers=True) as front:
            await front.known(1)
            yield front


def variables(front: ProxyStage, folder: Path, authority: Authority) -> dict[str, str]:
    return {
        "CHIAPOS_RECOMPUTE_HOST": f"localhost:{front.port}",
        "GPUPOOL_CLIENT_TLS": "1",
        "GPUPOOL_CLIENT_TLS_CA": str(authority.certificate),
        "GPUPOOL_CLIENT_TOKEN_FILE": str(folder / "client-token"),
    }


async def test_a_harvesters_variables_lead_through_tls_to_the_answer(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with chain(tmp_path, authority) as front:
        environment = variables(front, tmp_path, authority)
        credentials = Credentials.from_environment(environment)
        options = ClientOptions.from_environment(environment, tls=credentials.hosts_speak_tls)
        assert options.hosts == (Host("localhost", front.port, tls=True),)
        async with AsyncClient(options, token=credentials.token, tls=credentials.tls) as client:
            answer = await client.ask(question_of(demo_request()))
        assert answer.numbers == known_proof().xs
        assert front.core.judge.verdicts["right"] == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("expired", "has expired"),
        ("another host", "for another name"),
        ("signed by itself", "authority that is not trusted here"),
        ("wrong authority", "authority that is not trusted here"),
        ("no token", "it wants a token"),
        ("wrong token", "it does not know the token that it was shown"),
        ("plain", "--client-ca, with its key"),
    ],
)
async def test_what_is_wrong_is_said_in_one_line_with_what_to_do(
    tmp_path: Path, fault: str, words: str
) -> None:
    authority = Authority(tmp_path)
    other = Authority(tmp_path, "other")
    faults: dict[str, dict[str, object]] = {
        "expired": {"days": (-9, -2)},
        "another host": {"host": "elsewhere.example"},
    }
    async with chain(tmp_path, authority, **faults.get(fault, {})) as front:
        token = None if fault == "no token" else tmp_path / "client-token"
        token = (
            secret(tmp_path, "other-token", "a-token-of-somebody-else") if fault == "wrong token" else token
        )
        ca = None if fault == "signed by itself" else authority.certificate
        credentials = Credentials.read(
            token_file=token, ca=other.certificate if fault == "wrong authority" else ca
        )
        host = Host("localhost", front.port, tls=True)
        if fault == "plain":
            # A server that wants a certificate, asked by a client that has none.
            name = next(iter(front.core.directory.nodes))
            host = Host("localhost", int(name.rpartition(":")[2]), tls=True)
        findings = await check_hosts([host], ChiaposVariables(), credentials)
        checked = await check_host(host, 3, 5.0, 2.0, credentials)
    assert findings[0].verdict == "fail"
    told = " ".join((findings[0].name, findings[0].measured, str(findings[0].why), str(findings[0].remedy)))
    assert words in told
    assert checked.error is not None
    if fault in {"no token", "wrong token"}:
        assert ("the one in the request" in checked.error.message) == (fault == "wrong token")
    assert findings[0].remedy


def test_credentials_come_from_files_that_are_private(tmp_path: Path) -> None:
    token = secret(tmp_path, "token", CLIENT_TOKEN)
    given = {"GPUPOOL_CLIENT_TOKEN_FILE": str(token)}
    assert Credentials.from_environment(given).token == CLIENT_TOKEN
    token.chmod(0o644)
    with pytest.raises(EnvironmentProblemError, match="other users"):
        Credentials.from_environment(given)
    with pytest.raises(InvalidInputError, match="neither yes nor no"):
        Credentials.from_environment({"GPUPOOL_CLIENT_TLS": "perhaps"})
    with pytest.raises(EnvironmentProblemError):
        Credentials.from_environment({"GPUPOOL_CLIENT_TLS_CA": str(tmp_path / "none")})


async def asked(environment: dict[str, str], seconds: int = 30) -> tuple[int, ...]:
    """Return what a harvester with these variables is answered in time."""
    credentials = Credentials.from_environment(environment)
    options = ClientOptions.from_environment(
        {"CHIAPOS_RECOMPUTE_TIMEOUT": str(1000 * seconds), **environment}, tls=credentials.hosts_speak_tls
    )
    async with AsyncClient(options, token=credentials.token, tls=credentials.tls) as client:
        return tuple((await client.ask(question_of(demo_request()))).numbers)


async def test_a_pinned_certificate_counts_whatever_its_name_and_no_other_gets_the_token(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    async with chain(tmp_path, authority, host="elsewhere") as front:
        fingerprint = hashlib.sha256(
            ssl.PEM_cert_to_DER_cert((tmp_path / "proxy.pem").read_text())
        ).hexdigest()
        environment = variables(front, tmp_path, authority)
        del environment["GPUPOOL_CLIENT_TLS_CA"]
        pinned = {**environment, "GPUPOOL_CLIENT_TLS": f"sha256:{fingerprint}"}
        assert await asked(pinned) == tuple(known_proof().xs)
        contacted = await contact(
            Host("localhost", front.port, tls=True), 10, Credentials.from_environment(pinned)
        )
        assert contacted.found is Found.SERVER

        wrong = {**environment, "GPUPOOL_CLIENT_TLS": "sha256:" + "00" * 32}
        with pytest.raises(GpupoolError, match=f"another certificate than the pinned one .*{fingerprint}"):
            await asked(wrong, seconds=2)
        contacted = await contact(
            Host("localhost", front.port, tls=True), 10, Credentials.from_environment(wrong)
        )
        assert contacted.found is Found.NOT_TRUSTED
        assert "GPUPOOL_CLIENT_TLS=sha256:" in (contacted.remedy or "")


def test_a_pin_is_whole_and_excludes_an_authority(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no fingerprint"):
        Credentials.from_environment({"GPUPOOL_CLIENT_TLS": "sha256:abcd"})
    both = {"GPUPOOL_CLIENT_TLS": "sha256:" + "ab" * 32, "GPUPOOL_CLIENT_TLS_CA": str(tmp_path / "ca.pem")}
    with pytest.raises(InvalidInputError, match="both are given"):
        Credentials.from_environment(both)
