"""What an operator has when things go wrong: status, doctor, logs, a support bundle, and a clean way out."""

import json
import os
import shutil
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpupool.cli.checks.packages import checkout as checkout_of
from gpupool.core.ids import new_id
from gpupool.core.processes import identify, marked
from gpupool.runtimes.process.output import MOST_BYTES
from up_run import UpRun, until, up_run

PLANTED = {
    "spec": "plantedSpecValue-4471",
    "telling": "tiny-pw",
    "log": "plantedInLog-9982",
    "variable": "plantedVariable-3310",
}
CHUTE = f"""
name: leaky
command:
  - python
  - -c
  - |
    import os, http.server
    print("my token is", os.environ["INNOCENT"], os.environ["DB_PASSWORD"], flush=True)
    http.server.test(http.server.SimpleHTTPRequestHandler, port=int(os.environ["PORT"]), bind=os.environ["HOST"])
env:
  INNOCENT: {PLANTED["spec"]}
  DB_PASSWORD: {PLANTED["telling"]}
health: /
memory_mb: 64
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[UpRun]:
    with up_run(tmp_path / "home") as one:
        yield one


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> UpRun:
    """A pool that was started and has ended; never changed."""
    with up_run(tmp_path_factory.mktemp("once") / "home") as one:
        assert one.once("--no-demo").returncode == 0
    return one


@pytest.fixture
def stopped(run: UpRun, once: UpRun) -> UpRun:
    """A copy of its folder, to be spoilt."""
    shutil.copytree(
        once.home, run.home, symlinks=True, ignore=shutil.ignore_patterns("numba"), dirs_exist_ok=True
    )
    return run


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpRun]:
    """A pool with one chute, shared by the tests that leave it as they found it."""
    with up_run(tmp_path_factory.mktemp("operated") / "home") as one:
        one.start("--no-demo")
        assert one.cli("chute", "deploy", "-", stdin=CHUTE).returncode == 0
        yield one


def findings(run: UpRun) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in run.json("doctor")["findings"]}


def lines(path: Path) -> list[dict[str, Any]]:
    """Every line of a log: each must be a JSON object."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def states(told: dict[str, Any]) -> dict[str, str]:
    return {process["name"]: process["state"] for process in told["processes"]}


def ask_for_nothing(run: UpRun) -> str:
    """Ask the gateway for a model that there is not, and return the id of the request."""
    request = new_id("req")
    reply = httpx.post(
        f"http://127.0.0.1:{run.ports[1]}/v1/chat/completions",
        headers={"X-Request-Id": request},
        json={"model": "none-of-that-name", "messages": [{"role": "user", "content": "?"}]},
        trust_env=False,
    )
    assert reply.status_code == 404
    assert reply.headers["X-Request-Id"] == request
    return request


def kill_all_of(run: UpRun) -> None:
    """Kill ``up`` and its warden, so that nobody is left to clean up."""
    assert run.process is not None
    for process in marked("GPUPOOL_HOME", str(run.home)):
        if b"warden" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            process.signal(signal.SIGKILL)
    run.process.kill()
    run.process.wait()


class TestDoctor:
    def test_finds_a_running_pool_well(self, pool: UpRun) -> None:
        found = findings(pool)
        for name in ("state folder", "file rights", "tokens", "database schema", "database pages", "processes",
                     "records", "leftovers", "control answers", "gateway answers", "clock steps",
                     "clock of control", "Python"):  # fmt: skip
            assert found[name]["verdict"] == "pass", found[name]

    def test_changes_nothing_in_a_stopped_pool(self, stopped: UpRun) -> None:
        before = {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in stopped.home.rglob("*")}
        told = stopped.cli("doctor")
        assert told.returncode == 0, told.stdout
        assert "0 fail" in told.stdout
        assert {p: (p.lstat().st_mtime_ns, p.lstat().st_size) for p in stopped.home.rglob("*")} == before

    def test_sees_a_frozen_control_and_exits_with_5(self, pool: UpRun) -> None:
        control = pool.role("control")
        control.signal(signal.SIGSTOP)
        try:
            told, status = pool.cli("doctor", "--json"), pool.cli("status")
        finally:
            control.signal(signal.SIGCONT)
        assert (told.returncode, status.returncode) == (5, 8)
        assert "frozen" in status.stdout
        found = {finding["name"]: finding for finding in json.loads(told.stdout)["findings"]}
        assert found["processes"]["verdict"] == "fail"
        assert f"kill -CONT {control.pid}" in found["processes"]["remedy"]

    def test_sees_a_damaged_database(self, stopped: UpRun) -> None:
        (stopped.home / "data" / "pool.db").write_bytes(b"not a database" * 300)
        told = stopped.cli("doctor")
        assert told.returncode == 5
        assert "Restore the newest backup" in " ".join(told.stdout.split())


class TestStatus:
    def test_shows_the_processes_too(self, pool: UpRun) -> None:
        assert states(pool.json("status")) == dict.fromkeys(
            ("control", "gateway", "agent", "leaky"), "running"
        )

    def test_tells_without_control_what_runs_and_what_died(self, pool: UpRun) -> None:
        assert pool.process is not None
        # A suspended ``up`` brings nothing back while we look.
        pool.process.send_signal(signal.SIGSTOP)
        control = pool.role("control")
        try:
            control.signal(signal.SIGKILL)
            control.wait_gone(10)
            told, table = pool.cli("status", "--json"), pool.cli("status")
        finally:
            pool.process.send_signal(signal.SIGCONT)
        assert (told.returncode, table.returncode) == (8, 8)
        assert states(json.loads(told.stdout)) == {
            "control": "died", "gateway": "running", "agent": "running", "leaky": "running",
        }  # fmt: skip
        assert json.loads(told.stdout)["error"]["code"] == "unavailable"
        assert "died" in table.stdout
        assert "What to do" in table.stderr
        until(lambda: pool.cli("status").returncode == 0, 60, "control's return")

    def test_says_that_a_stopped_pool_is_off(self, stopped: UpRun) -> None:
        told = stopped.cli("status", "--json", "--control", f"http://127.0.0.1:{stopped.ports[0]}")
        assert told.returncode == 8
        assert states(json.loads(told.stdout)) == dict.fromkeys(("control", "gateway", "agent"), "off")


class TestLogs:
    def test_every_line_of_every_process_is_json_with_its_role(self, pool: UpRun) -> None:
        for role in ("control", "gateway", "agent"):
            told = lines(pool.home / "logs" / f"{role}.log")
            assert told
            assert {line["role"] for line in told} == {role}

    def test_the_agent_names_placements(self, pool: UpRun) -> None:
        placement = pool.json("chute", "show", "leaky")["placements"][0]["id"]
        launched = [
            line for line in lines(pool.home / "logs" / "agent.log") if line.get("placement") == placement
        ]
        assert any(line["event"] == "launched" for line in launched)

    def test_the_gateway_names_requests_that_fail(self, pool: UpRun) -> None:
        """The id that a client sends with its request is the one to search the log for."""
        request = ask_for_nothing(pool)
        log = pool.home / "logs" / "gateway.log"
        until(
            lambda: request in [line.get("request_id") for line in lines(log)], 10, "the request in the log"
        )

    def test_a_log_is_cut_while_its_process_goes_on(self, pool: UpRun) -> None:
        log, older = (pool.home / "logs" / name for name in ("gateway.log", "gateway.log.1"))
        with log.open("ab") as file:
            file.write(b"x" * MOST_BYTES)
        until(lambda: older.exists() and log.stat().st_size < MOST_BYTES, 30, "the cut")
        assert older.stat().st_mode & 0o077 == 0
        request = ask_for_nothing(pool)
        until(lambda: request in log.read_text(), 10, "a line in the emptied log")
        assert lines(log)[0]["request_id"] == request


class TestBundle:
    def bundle(self, run: UpRun, path: Path) -> dict[str, bytes]:
        os.environ["THIRD_PARTY_API_KEY"] = PLANTED["variable"]
        try:
            made = run.cli("support-bundle", "--output", str(path))
        finally:
            del os.environ["THIRD_PARTY_API_KEY"]
        assert made.returncode == 0, made.stderr
        assert path.stat().st_mode & 0o777 == 0o600
        with tarfile.open(path) as archive:
            members = {
                member.name: file.read()
                for member in archive
                if (file := archive.extractfile(member)) is not None
            }
        told = {name.removeprefix("gpupool-support/"): content for name, content in members.items()}
        assert made.stdout.startswith(f"{path}: {len(told)} files")
        assert all(name.partition("/")[0] in made.stdout for name in told)
        return told

    def test_holds_what_helps_and_no_secret(self, pool: UpRun, tmp_path: Path) -> None:
        """Secrets are planted where they really get: a spec, a chute's output, a log, a variable, the key files."""
        keys = {path.name: path.read_text().strip() for path in (pool.home / "keys").iterdir()}
        keys["node.key"] = (pool.home / "agent" / "node.key").read_text().strip()
        (pool.home / "logs" / "other.log").write_text(
            f"token seen: {keys['operator.token']}\nAuthorization: Bearer {PLANTED['log']}\n"
            f'{{"key": "{keys["node.key"]}"}}\nvariable {PLANTED["variable"]}\nwhat helps stays\n'
        )
        outputs = [path.read_text() for path in (pool.home / "agent" / "runs").glob("*/output.log")]
        assert any(PLANTED["spec"] in text and PLANTED["telling"] in text for text in outputs)
        files = self.bundle(pool, tmp_path / "bundle.tar.gz")
        for name, content in files.items():
            for what, secret in {**PLANTED, **keys}.items():
                assert secret.encode() not in content, f"{what} is in {name}"
        assert b"what helps stays" in files["logs/other.log"]
        wanted = {"doctor.json", "versions.json", "settings.json", "processes.json", "database.json", "pool.json",
                  "events.jsonl", "logs/control.log", "logs/gateway.log", "logs/agent.log"}  # fmt: skip
        assert wanted <= set(files)
        assert json.loads(files["database.json"])["rows"]["workloads"] == 1
        spec = json.loads(files["pool.json"])["workloads"][0]["spec"]
        assert spec["env"] == {"INNOCENT": "[removed]", "DB_PASSWORD": "[removed]"}
        assert b"node.ready" in files["events.jsonl"]
        (record,) = (json.loads(content) for name, content in files.items() if name.endswith("record.json"))
        assert record["order"]["workload_name"] == "leaky"

    def test_is_made_without_control_and_without_a_state_folder(self, run: UpRun, tmp_path: Path) -> None:
        run.home = tmp_path / "none"
        files = self.bundle(run, tmp_path / "bundle.tar.gz")
        assert json.loads(files["pool.json"])["error"]["code"] == "unauthorized"
        assert "doctor.json" in files
        assert not run.home.exists()

    def test_never_replaces_a_file(self, run: UpRun, tmp_path: Path) -> None:
        there = tmp_path / "there.tar.gz"
        there.write_text("mine")
        assert run.cli("support-bundle", "--output", str(there)).returncode == 5
        assert there.read_text() == "mine"

    def test_follows_no_link(self, run: UpRun, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.write_text("not of the pool")
        logs = run.home / "logs"
        logs.mkdir()
        (logs / "linked.log").symlink_to(outside)
        os.mkfifo(logs / "pipe.log")
        files = self.bundle(run, tmp_path / "bundle.tar.gz")
        assert b"not of the pool" not in b"".join(files.values())
        assert files["logs/pipe.log"] == b"(not a file)\n"


class TestUninstall:
    def test_refuses_while_up_runs(self, pool: UpRun) -> None:
        refused = pool.cli("uninstall", "--yes")
        assert refused.returncode == 5
        assert "already_up" in refused.stderr
        assert (pool.home / "data" / "pool.db").exists()

    def test_removes_a_stopped_pool_and_nothing_that_it_links_to(self, stopped: UpRun) -> None:
        shared = Path(os.environ["NUMBA_CACHE_DIR"])
        gone = stopped.cli("uninstall", "--yes")
        assert gone.returncode == 0, gone.stderr
        assert not stopped.home.exists()
        assert shared.is_dir()
        assert f"{stopped.home / 'cache' / 'numba'} -> {shared}" in gone.stdout
        root = checkout_of()
        assert root is not None
        assert str(root) in gone.stdout

    def test_ends_what_a_killed_up_has_left_after_doctor_named_it(self, run: UpRun) -> None:
        run.start("--no-demo")
        assert run.cli("chute", "deploy", "-", stdin=CHUTE).returncode == 0
        left = [*run.alive()]
        kill_all_of(run)
        assert left
        found = findings(run)
        assert found["leftovers"]["verdict"] == "warn"
        assert "up does not run" in found["processes"]["measured"]
        (run.home / "up.out").unlink()
        gone = run.cli("uninstall", "--yes")
        assert gone.returncode == 0, gone.stderr
        assert "processes that still ran" in gone.stdout
        assert not run.home.exists()
        assert [identify(process.pid) for process in left if process.alive()] == []

    def test_keeps_the_data_for_the_next_start(self, run: UpRun) -> None:
        run.start("--no-demo")
        assert run.cli("chute", "deploy", "-", stdin=CHUTE).returncode == 0
        run.interrupt()
        assert run.wait() == 0
        assert run.cli("uninstall", "--yes", "--keep-data").returncode == 0
        run.start("--no-demo")
        assert [workload["name"] for workload in run.json("chute", "list")] == ["leaky"]
        assert len(run.json("node", "list")) == 1

    def test_asks_first(self, stopped: UpRun) -> None:
        assert stopped.cli("uninstall", stdin="n\n").returncode == 1
        assert stopped.cli("uninstall", stdin="").returncode == 1
        assert (stopped.home / "data" / "pool.db").exists()
