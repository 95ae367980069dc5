"""The commands on the harvester's side against real hosts: what they print, and exit codes that tell the truth."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from certificates import Authority
from gpupool.cli.checks.recompute import check_reach, own_address
from gpupool.cli.recompute import app
from gpupool.core.errors import GpupoolError
from gpupool.recompute.demo import demo_request, known_proof, quality_request
from recompute_hosts import hosts

DEMO = str(files("gpupool.recompute").joinpath("data/demo_proof.json"))


def run(*arguments: str, text: str | None = None, **variables: str) -> Result:
    return CliRunner().invoke(app, arguments, input=text, env=variables)


def code(result: Result) -> int:
    """The exit code that the ``gpupool`` command would end with."""
    if isinstance(result.exception, GpupoolError):
        return result.exception.exit_code
    return result.exit_code


@contextmanager
def stranger(words: bytes, *, first: bool = False) -> Iterator[str]:
    """A listener that says ``words`` to everybody, at once or after the first bytes, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    if not first:
                        peer.recv(4096)
                    peer.sendall(words)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_check_asks_every_host_and_says_which_one_is_bad(free_port: int) -> None:
    with hosts("", "--lies") as (good, liar):
        result = run("check", good.name, f"http://{good.name}/", "--level", "2", "--seconds", "60")
        assert code(result) == 0
        assert result.stdout.count("all 64 x recovered from C2") == 1
        result = run("check", f"{good.name},127.0.0.1:{free_port}", "--seconds", "60")
        assert code(result) == 8
        assert f"http://{good.name}: all 64 x" in result.stdout
        assert "refused the connection" in str(result.exception)
        result = run("check", liar.name, "--seconds", "60")
        assert code(result) == 1
        assert "another proof" in str(result.exception)


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        ("--refuses busy", 7),
        ("--refuses locked", 6),
        ("--refuses unsupported", 2),
        ("--refuses no_proof", 1),
        ("--delay 600", 9),
    ],
)
def test_check_ends_with_the_code_of_the_fault(behaviour: str, expected: int) -> None:
    with hosts(behaviour) as (host,):
        assert code(run("check", host.name, "--seconds", "0.5")) == expected


def test_hosts_come_from_the_variables() -> None:
    with hosts("", "") as (first, second):
        variables = {
            "CHIAPOS_RECOMPUTE_HOST": f"127.0.0.1,{second.name}",
            "CHIAPOS_RECOMPUTE_PORT": str(first.port),
        }
        result = run("check", "--seconds", "60", **variables)
    assert code(result) == 0
    assert first.name in result.stdout
    assert second.name in result.stdout


def test_a_bad_variable_is_named() -> None:
    result = run("check", CHIAPOS_RECOMPUTE_TIMEOUT="soon")
    assert code(result) == 2
    assert "CHIAPOS_RECOMPUTE_TIMEOUT" in str(result.exception)


@pytest.mark.parametrize("way", ["file", "stdin"])
def test_lookup_takes_a_request_or_a_whole_proof(tmp_path: Path, way: str) -> None:
    proof = known_proof()
    with hosts("", "--delay 600") as (good, slow):
        for text, name in (
            (Path(DEMO).read_text(), "proof"),
            (demo_request().model_dump_json(exclude_none=True), "proof"),
            (quality_request(proof).model_dump_json(exclude_none=True), "quality"),
        ):
            path = tmp_path / "question.json"
            path.write_text(text)
            where = (str(path),) if way == "file" else ("-",)
            options = ("--host", good.name, "-n", slow.name, "--json", "--seconds", "60")
            result = run("lookup", *where, *options, text=text)
            assert code(result) == 0, result.exception
            fields = json.loads(result.stdout)
            assert (fields["host"], fields["quality"]) == (good.name, proof.quality.hex())
            assert ("proof" in fields) == (name == "proof")


def test_lookup_prints_the_proof_as_other_tools_do() -> None:
    with hosts("") as (good,):
        result = run("lookup", DEMO, "--host", good.name, "--seconds", "60")
    assert f"proof: 0x{json.loads(Path(DEMO).read_text())['proof']}" in result.stdout
    assert f"Answered by {good.name}" in result.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[" * 60_000, "not JSON"),
        ("[]", "no JSON object"),
        ("{}", "not valid"),
        ('{"proof": "00"}', "has no k"),
        ('{"proof": "zz", "k": 32, "plot_id": "00", "challenge": "00"}', "hexadecimal"),
        ('{"proof": 5, "k": 32, "plot_id": "00", "challenge": "00"}', "hexadecimal"),
        ('{"proof": "00", "k": 32, "plot_id": "00", "challenge": "00"}', "256 bytes"),
        (" " * 70_000, "at most 64 KiB"),
    ],
)
def test_lookup_says_what_is_wrong_with_a_question(text: str, words: str) -> None:
    result = run("lookup", "-", "--host", "127.0.0.1:1", text=text)
    assert code(result) == 2
    assert words in str(result.exception)


def test_lookup_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, words in (("none", "No such file"), ("bytes", "not text"), (".", "directory")):
        result = run("lookup", str(tmp_path / name), "--host", "127.0.0.1:1")
        assert code(result) == 2
        assert words in str(result.exception)


def test_lookup_needs_hosts_and_ends_with_9_without_a_good_one(free_port: int) -> None:
    assert code(run("lookup", DEMO)) == 2
    result = run("lookup", DEMO, "--host", f"127.0.0.1:{free_port}", "--seconds", "0.2")
    assert code(result) == 9
    with hosts("--refuses no_proof") as (host,):
        assert code(run("lookup", DEMO, "--host", host.name, "--seconds", "60")) == 4


def test_farm_loses_nothing_while_one_host_is_good() -> None:
    with hosts("", "--lies", "--refuses busy") as (good, liar, busy):
        names = f"{good.name},{liar.name},{busy.name}"
        result = run(
            "farm", names, "--count", "40", "--proofs", "25", "--seconds", "60", "--rate", "500", "--json"
        )
    assert code(result) == 0
    fields = json.loads(result.stdout)
    assert (fields["asked"], fields["answered"], fields["failed"]) == (40, 40, 0)
    assert fields["hosts"] == {good.name: 40}
    assert fields["rescued"] > 0
    assert 0 < fields["ms"]["p50"] <= fields["ms"]["p99"] <= fields["ms"]["max"]


def test_farm_tells_of_look_ups_that_failed(free_port: int) -> None:
    host = f"127.0.0.1:{free_port}"
    result = run("farm", host, "--count", "3", "--concurrency", "3", "--seconds", "0.2")
    assert code(result) == 9
    assert "0 of 3 look-ups answered" in result.stdout
    assert "3 failed" in result.stderr
    assert "refused the connection" in result.stderr


def test_farm_that_is_interrupted_shows_what_it_has(checkout: Path) -> None:
    with hosts("") as (good,):
        command = [sys.executable, "-m", "gpupool", "recompute", "farm", good.name]
        child = subprocess.Popen(
            [*command, "--count", "1000000", "--json", "--seconds", "60", "--concurrency", "1"],
            env=os.environ | {"PYTHONPATH": str(checkout / "src")},
            stdout=subprocess.PIPE,
        )
        good.await_question()
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate()
    assert child.returncode == 130
    fields = json.loads(output)
    assert fields["asked"] < 1_000_000
    assert fields["failed"] == 0


def findings(result: Result) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_doctor_finds_nothing_wrong_with_a_good_set_up() -> None:
    with hosts("") as (good,):
        result = run("doctor", "--json", CHIAPOS_RECOMPUTE_HOST=good.name)
    found = findings(result)
    assert code(result) == 0
    assert {finding["verdict"] for finding in found.values()} == {"pass"}
    assert set(found) == {"variables", good.name, f"{good.name} clock", f"{good.name} proof"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CHIAPOS_RECOMPUTE_HOSTS", "192.168.1.5", "Rename it to CHIAPOS_RECOMPUTE_HOST."),
        ("CHIAPOS_RECOMPUTE_TIMOUT", "5000", "Rename it to CHIAPOS_RECOMPUTE_TIMEOUT."),
        ("chiapos_recompute_host", "192.168.1.5", "Rename it to CHIAPOS_RECOMPUTE_HOST."),
        ("CHIAPOS_RECOMPUTE_PORT", "119890", "65535"),
        ("CHIAPOS_RECOMPUTE_HOST", "http://192.168.1.5:11989", "scheme"),
        ("CHIAPOS_RECOMPUTE_HOST", "192.168.1.5:119890", "65535"),
    ],
)
def test_doctor_finds_wrong_variables(name: str, value: str, words: str) -> None:
    with hosts("") as (good,):
        result = run("doctor", good.name, **{name: value})
    assert code(result) == 5
    assert words in result.stdout


def test_doctor_warns_of_a_short_retry_interval_and_of_no_host() -> None:
    with hosts("") as (good,):
        result = run("doctor", good.name, CHIAPOS_RECOMPUTE_RETRY_INTERVAL="1")
    assert code(result) == 0
    assert "warn  retry interval" in result.stdout
    assert "CHIAPOS_RECOMPUTE_HOST is not set" in result.stdout


def test_doctor_says_whether_others_can_reach_this_machines_own_server() -> None:
    with hosts("", "--address 0.0.0.0") as (closed, open_to_all):
        assert check_reach(closed.port, "127.0.0.2", 5.0).verdict == "warn"
        assert check_reach(open_to_all.port, "127.0.0.2", 5.0).verdict == "pass"
        found = findings(run("doctor", "--json", CHIAPOS_RECOMPUTE_PORT=str(open_to_all.port)))
    assert found[f"127.0.0.1:{open_to_all.port}"]["verdict"] == "pass"
    if own_address() is not None:
        assert found[f"127.0.0.1:{open_to_all.port} reach"]["verdict"] == "pass"


def test_every_tool_takes_ipv6_with_and_without_a_port() -> None:
    with hosts("--address ::1") as (host,):
        for given in (f"[::1]:{host.port}", "::1"):
            words = {"CHIAPOS_RECOMPUTE_HOST": given, "CHIAPOS_RECOMPUTE_PORT": str(host.port)}
            result = run("check", "--seconds", "60", **words)
            assert (code(result), f"http://[::1]:{host.port}: all 64 x" in result.stdout) == (0, True)
            result = run("lookup", DEMO, "--seconds", "60", "--json", **words)
            assert (code(result), json.loads(result.stdout)["host"]) == (0, f"[::1]:{host.port}")
            assert code(run("farm", "--count", "3", "--seconds", "60", **words)) == 0
            assert code(run("doctor", **words)) == 0


@pytest.mark.parametrize(
    ("words", "first", "expected"),
    [
        (b"", False, "Gigahorse"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", True, "it says b'SSH-2.0"),
        (b"HTTP/1.1 200 OK\r\nServer: nginx\r\n\r\nhi", False, "an HTTP server (nginx)"),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", False, "wants a token"),
    ],
)
def test_doctor_names_what_listens_instead(words: bytes, first: bool, expected: str) -> None:
    with stranger(words, first=first) as address:
        result = run("doctor", address)
    assert code(result) == 5
    assert expected in result.stdout


def test_doctor_finds_closed_ports_silence_and_names_without_an_address(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = run(
            "doctor",
            f"127.0.0.1:{free_port}",
            f"127.0.0.1:{silent.getsockname()[1]}",
            "no-such-host.invalid",
            CHIAPOS_RECOMPUTE_CONNECT_TIMEOUT="300",
        )
    assert code(result) == 5
    for words in ("nothing listens there", "Gigahorse", "its name has no address"):
        assert words in result.stdout


def test_doctor_and_check_tell_tls_from_plain(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("server")
    with hosts("", f"--certificate {own.certificate} --key {own.key}") as (plain, secure):
        for address, words in (
            (f"localhost:{secure.port}", "speaks TLS, and is asked without"),
            (f"https://localhost:{plain.port}", "does not speak TLS"),
            (f"https://localhost:{secure.port}", "certificate is not trusted"),
        ):
            result = run("doctor", address)
            assert code(result) == 5, address
            assert words in result.stdout
        result = run("doctor", f"https://localhost:{secure.port}", "--tls-ca", str(authority.certificate))
        assert code(result) == 0, result.stdout
        result = run("check", f"https://localhost:{secure.port}", "--seconds", "60")
        assert code(result) == 8
        assert "not trusted" in str(result.exception)


def test_doctor_and_check_send_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open-sesame-please\n")
    token.chmod(0o600)
    with hosts("--token open-sesame-please") as (good,):
        assert code(run("doctor", good.name, "--token-file", str(token))) == 0
        assert code(run("doctor", good.name)) == 5
    assert code(run("check", "--token-file", str(tmp_path / "none"))) == 3


def test_doctor_sees_a_proxy_without_servers_of_ours_other_versions_and_clocks() -> None:
    with hosts("--kinds frames", "--version 0.0.1 --date 2020-01-01") as (proxy, old):
        result = run("doctor", proxy.name, old.name)
    assert code(result) == 5
    assert "a proxy in front of frames" in result.stdout
    assert "0.0.1 there" in result.stdout
    assert f"warn  {old.name} clock" in result.stdout


def test_env_prints_the_line_of_every_shell() -> None:
    value = "192.168.1.5:11989,[2001:db8::1]:11990"
    for shell, line in (
        ("cmd", f"set CHIAPOS_RECOMPUTE_HOST={value}"),
        ("powershell", f'$env:CHIAPOS_RECOMPUTE_HOST = "{value}"'),
        ("sh", f"export CHIAPOS_RECOMPUTE_HOST={value}"),
    ):
        result = run("env", *value.split(","), "--shell", shell)
        assert (code(result), result.stdout) == (0, line + "\n")
        assert run("env", "--shell", shell, CHIAPOS_RECOMPUTE_HOST=value).stdout == line + "\n"
    assert code(run("env")) == 2
    assert code(run("env", "192.168.1.5;reboot")) == 2


def test_env_writes_the_guides_start_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write = ("--write-start-script", "--shell")
    for shell in ("cmd", "sh"):
        assert code(run("env", "192.168.1.5:11989", *write, shell)) == 0
    assert Path("start_harvester.cmd").read_bytes() == (
        b"@ECHO OFF\r\nsetlocal\r\nset CHIAPOS_RECOMPUTE_HOST=192.168.1.5:11989\r\n"
        b'start "Chia Gigahorse" cmd.exe /K ".\\chia.exe start harvester"\r\n:EXIT\r\nendlocal\r\n'
    )
    script = Path("start_harvester.sh")
    assert script.read_bytes() == (
        b"#!/bin/bash\nexport CHIAPOS_RECOMPUTE_HOST=192.168.1.5:11989\n./chia.bin start harvester\n"
    )
    assert script.stat().st_mode & 0o111
    assert code(run("env", "192.168.1.6", *write, "sh")) == 5
    assert b"192.168.1.5" in script.read_bytes()
    assert code(run("env", "192.168.1.6", *write, "sh", "--force")) == 0
    assert b"192.168.1.6" in script.read_bytes()
    assert code(run("env", "192.168.1.6", *write, "powershell")) == 2
