"""A running pool keeps its secrets: who listens where, who may read what, and where a planted secret turns up."""

import os
import stat
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest

from up_run import UpRun, until, up_run

PLANTED = "plantedEnvValue-8842"
CHUTE = f"""
name: guarded
command:
  - python
  - -c
  - |
    import os, http.server
    http.server.test(http.server.SimpleHTTPRequestHandler, port=int(os.environ["PORT"]), bind=os.environ["HOST"])
env:
  HF_TOKEN: {PLANTED}
health: /
memory_mb: 64
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpRun]:
    """A pool with one active chute that was given a secret."""
    with up_run(tmp_path_factory.mktemp("secrets") / "home") as one:
        one.start("--no-demo")
        deployed = one.cli("chute", "deploy", "-", stdin=CHUTE)
        assert deployed.returncode == 0, deployed.stderr
        until(one.workload_processes, what="the chute")
        yield one


def secrets_of(pool: UpRun) -> dict[str, bytes]:
    """Return every secret of the pool by name."""
    found = {path.name: path.read_bytes().strip() for path in (pool.home / "keys").iterdir()}
    found["node.key"] = (pool.home / "agent" / "node.key").read_bytes().strip()
    assert {"operator.token", "service.token", "join.token", "seal.key", "node.key"} <= set(found)
    assert all(len(secret) > 20 for secret in found.values())
    return {**found, "planted": PLANTED.encode()}


def sockets_of(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found


def listeners(inodes: set[str]) -> list[str]:
    """Return the addresses on which sockets of ``inodes`` listen."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                words = bytes.fromhex(fields[1].partition(":")[0])
                address = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                found.append(str(ip_address(address)))
    return found


def test_everything_listens_on_loopback_only(pool: UpRun) -> None:
    processes = pool.alive()
    assert len(processes) >= 4
    found = [address for process in processes for address in listeners(sockets_of(process.pid))]
    assert len(found) >= 3
    assert set(found) <= {"127.0.0.1", "::1"}


def test_keys_and_records_are_their_owner_s_only(pool: UpRun) -> None:
    paths = [
        *(pool.home / "keys").iterdir(),
        *(pool.home / "data").iterdir(),
        *(pool.home / "logs").iterdir(),
        *(pool.home / "agent").rglob("*.json"),
        pool.home / "agent" / "node.key",
    ]
    assert {
        str(path): oct(path.stat().st_mode) for path in paths if stat.S_IMODE(path.stat().st_mode) != 0o600
    } == {}
    for folder in ("keys", "data", "logs", "agent", "agent/runs", "run"):
        assert stat.S_IMODE((pool.home / folder).stat().st_mode) == 0o700


def test_no_command_line_holds_a_secret(pool: UpRun) -> None:
    secrets = secrets_of(pool)
    lines = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines[path.parent.name] = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
    assert str(pool.role("control").pid) in lines
    told = {(pid, name) for pid, line in lines.items() for name, secret in secrets.items() if secret in line}
    assert told == set()


def test_database_and_logs_hold_no_secret_in_clear(pool: UpRun) -> None:
    secrets = secrets_of(pool)
    files = [
        *(pool.home / "data").iterdir(),
        *(pool.home / "logs").iterdir(),
        *(pool.home / "run").iterdir(),
        pool.home / "up.out",
        *(pool.home / "agent" / "runs").glob("*/output.log*"),
    ]
    assert any(path.name.startswith("pool.db") and path.stat().st_size for path in files)
    told = {
        (path.name, name)
        for path in files
        for content in [path.read_bytes()]
        for name, secret in secrets.items()
        if secret in content
    }
    assert told == set()


def test_the_node_got_the_secret_and_nobody_is_shown_it(pool: UpRun) -> None:
    (process,) = pool.workload_processes()
    until(
        lambda: f"HF_TOKEN={PLANTED}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes(),
        what="its secret",
    )
    for command in (("chute", "list"), ("status",), ("events",), ("chute", "deploy", "-")):
        told = pool.cli(*command, "--json", stdin=CHUTE)
        assert told.returncode == 0, told.stderr
        assert PLANTED not in told.stdout + told.stderr
    assert "guarded: unchanged" in pool.cli("chute", "deploy", "-", "--json", stdin=CHUTE).stderr


def test_no_server_answers_a_stranger(pool: UpRun) -> None:
    control, gateway, _ = pool.ports
    with httpx.Client(trust_env=False) as client:
        for path in (
            "/v1/pool",
            "/v1/nodes",
            "/v1/workloads",
            "/v1/events",
            "/v1/endpoints",
            "/v1/agent/commands",
        ):
            assert client.get(f"http://127.0.0.1:{control}{path}").status_code == 401
        for header in ("Bearer wrong", "Basic eA==", "Bearer"):
            answer = client.get(f"http://127.0.0.1:{control}/v1/pool", headers={"Authorization": header})
            assert answer.status_code == 401
        assert client.get(f"http://127.0.0.1:{gateway}/healthz").status_code == 200
