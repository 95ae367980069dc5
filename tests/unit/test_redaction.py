"""No secret leaves in a support bundle: neither a known one in any form, nor one that looks like one."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.cli.bundle.contents import MOST_TAIL, OVERLAP, cut
from gpupool.cli.bundle.redaction import REMOVED, Redactor
from gpupool.cli.bundle.secrets import known_secrets
from gpupool.core.home import Home
from gpupool.core.secret_names import is_secret_name

SECRET = "Zq9-hidden_value.77"
KNOWN = st.text(
    alphabet=st.characters(
        codec="utf-8", exclude_categories=["Cs", "Zs", "Cc"], exclude_characters="[]removd"
    ),
    min_size=4,
    max_size=40,
)


@given(st.lists(KNOWN, min_size=1, max_size=4), st.text(max_size=30))
def test_a_known_secret_survives_in_no_form(secrets: list[str], around: str) -> None:
    redactor = Redactor(secrets)
    for secret in secrets:
        for form in (secret, json.dumps(secret), quote(secret, safe="")):
            told = redactor.clean(f"x{form}y".encode()).decode()
            assert form.strip('"') not in told
    plain = "".join(character for character in around if character.isalnum() and character.isascii())
    untouched = not any(secret in plain for secret in secrets)
    if untouched:
        assert Redactor(secrets).clean(plain.encode()) == plain.encode()


def test_a_secret_that_holds_another_goes_whole() -> None:
    assert (
        Redactor(["abcd1234", "abcd1234-and-more"]).clean(b"<abcd1234-and-more>") == f"<{REMOVED}>".encode()
    )


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: Bearer {SECRET}",
        f"authorization: {SECRET}",
        f'{{"Authorization": "Basic {SECRET}"}}',
        f"curl -H 'Proxy-Authorization: Digest {SECRET}' http://x",
        f"the client sent bearer {SECRET} and was refused",
        f"HF_TOKEN={SECRET}",
        f"export API_KEY='{SECRET}'",
        f'{{"password": "{SECRET}", "n": 1}}',
        f"db.password: {SECRET}",
        f'"--api-key",\n   "{SECRET}"',
        f"serve --token {SECRET} --port 3",
        f"serve --api-key={SECRET}",
        f"postgres://pool:{SECRET}@db:5432/pool",
        f"redis://:{SECRET}@cache",
        f"Set-Cookie: session={SECRET}; Path=/",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n",
    ],
)
def test_what_looks_like_a_secret_goes_too(line: str) -> None:
    told = Redactor([]).clean(line.encode()).decode()
    assert SECRET not in told
    assert REMOVED in told


@pytest.mark.parametrize("token", ["sk-abcdefghijklmnop1234", "hf_abcdefghijklmnop", "ghp_abcdefghijklmnop"])
def test_tokens_of_well_known_shapes_go(token: str) -> None:
    assert token.encode() not in Redactor([]).clean(f"got {token}.".encode())


@pytest.mark.parametrize(
    "line",
    [
        '{"completion_tokens": 20, "prompt_tokens": 7}',
        '{"event": "launched", "placement": "pl-01m8", "port": 30000}',
        '{"password": null, "token": false}',
        "control at http://127.0.0.1:32000 cannot be reached",
    ],
)
def test_what_helps_stays(line: str) -> None:
    assert Redactor([]).clean(line.encode()).decode() == line


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("GPUPOOL_TOKEN", True),
        ("HF_TOKEN", True),
        ("OPENAI_API_KEY", True),
        ("DB_PASSWORD", True),
        ("MY_SECRET_THING", True),
        ("GPUPOOL_DATABASE_URL", True),
        ("GPUPOOL_ALERT_URLS", True),
        ("GPUPOOL_PROXY_ALERT_URL", True),
        ("GPUPOOL_CONTROL_URL", False),
        ("PWD", False),
        ("GPUPOOL_CONTROL_PORT", False),
        ("MAX_TOKENS", False),
        ("MONKEY", False),
    ],
)
def test_names_that_tell_of_a_secret(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_addresses_of_alerts_are_secrets_and_their_other_lines_are_not(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.alerts.write_text(f"targets:\n  - name: ops\n    apprise: 'dingtalk://{SECRET}@token'\n")
    assert known_secrets(home, {}) == {f"dingtalk://{SECRET}@token"}


@pytest.mark.parametrize(
    "piece", ["x", "-", "token", '"token', "://", "password='", "-----BEGIN ", "bearer ", 'key="\\"', "sk-"]
)
def test_a_line_of_a_megabyte_is_cleaned_in_one_pass(piece: str) -> None:
    """A pattern that looks back and forth over it would take days, and the runner's timeout would end the test."""
    line = piece.encode() * (2**20 // len(piece))
    assert b"plantedSecret" not in Redactor(["plantedSecret"]).clean(line + b" plantedSecret")


def test_a_tail_never_begins_with_half_a_secret() -> None:
    """The line that the cut goes through is dropped whole, since its secret can't be known by its second half."""
    assert cut(b"alf-a-secret\nwhole line\n") == b"whole line\n"
    assert cut(b"x" * (OVERLAP + 10)) == b"x" * 10
    assert len(cut(b"first\n" + b"y" * (MOST_TAIL + 100))) == MOST_TAIL
