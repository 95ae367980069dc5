"""The product's main job on one machine: ``gpupool up`` with real processes, a real model and a real proof."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gpupool.core.processes import marked
from gpupool.recompute.demo import known_proof
from up_run import UpRun, until, up_run

UNHEALTHY = """
name: never-well
command: [python, -c, "import time; print('awake', flush=True); time.sleep(600)"]
start_timeout: 2
max_restarts: 0
memory_mb: 64
"""
HELLO = """
name: hello
command: [python, -m, http.server, "{port}", --bind, "{host}"]
health: /
memory_mb: 64
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[UpRun]:
    with up_run(tmp_path / "home") as one:
        yield one


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpRun]:
    """A pool without the demo, shared by the tests that only talk to it."""
    with up_run(tmp_path_factory.mktemp("bare") / "home") as one:
        one.start("--no-demo")
        yield one


class TestOnce:
    def test_shows_both_results_and_resumes_from_the_same_state(self, run: UpRun) -> None:
        first = run.once("--json")
        assert first.returncode == 0, first.stderr
        result = json.loads(first.stdout)
        chat, proof = result["chat"], result["proof"]
        assert chat["answer"].strip()
        assert chat["finish_reason"] in {"stop", "length"}
        assert chat["completion_tokens"] > 0
        assert int(proof["proof"], 16) == sum(x << 32 * (63 - i) for i, x in enumerate(known_proof().xs))
        assert proof["level"] == 3
        assert proof["checked"] == "challenge"
        assert run.alive() == []
        assert run.bound_ports() == []

        second = run.once()
        assert second.returncode == 0, second.stderr
        assert "the demo runs on the CPU" in second.stdout
        assert "all 64 x-values recovered from C3" in second.stdout
        assert run.alive() == []

    def test_keeps_everything_private(self, run: UpRun) -> None:
        assert run.once("--no-demo").returncode == 0
        for path in run.home.rglob("*"):
            if path.is_symlink() or "cache" in path.parts:
                continue
            assert path.stat().st_mode & 0o077 == 0, f"others can reach {path}"


class TestRefusal:
    def test_names_a_taken_port_and_starts_nothing(self, run: UpRun) -> None:
        with socket.create_server(("127.0.0.1", run.ports[1])):
            refused = run.once()
        assert refused.returncode == 3
        assert f"port {run.ports[1]} (gateway, changed with --gateway-port) is held by pid" in refused.stderr
        assert run.alive() == []
        assert not (run.home / "data" / "pool.db").exists()

    def test_refuses_one_port_for_two_roles(self, run: UpRun) -> None:
        run.ports[1] = run.ports[0]
        refused = run.once()
        assert refused.returncode == 2
        assert "given to two roles" in refused.stderr

    def test_refuses_a_second_up_of_the_same_folder(self, bare: UpRun) -> None:
        assert bare.process is not None
        refused = bare.once("--no-demo")
        assert refused.returncode == 5
        assert f"pid {bare.process.pid}" in refused.stderr
        assert bare.cli("status").returncode == 0

    def test_refuses_a_folder_that_cannot_be_made(self, run: UpRun) -> None:
        blocked = run.home / "file"
        blocked.write_text("")
        run.home = blocked / "home"
        refused = run.once()
        assert refused.returncode == 3
        assert "GPUPOOL_HOME" in refused.stderr


class TestStop:
    def test_ends_every_child_on_the_first_interrupt(self, run: UpRun) -> None:
        run.start("--no-demo")
        assert run.cli("chute", "deploy", "-", stdin=HELLO).returncode == 0
        run.interrupt()
        assert run.wait() == 0, run.output()
        assert "everything is kept" in run.output()
        assert run.alive() == []
        assert run.bound_ports() == []

    def test_ends_at_once_on_the_second_interrupt(self, run: UpRun) -> None:
        run.start("--no-demo")
        # A chute that ignores the polite end keeps an orderly stop busy for its whole grace.
        stubborn = HELLO.replace(
            '[python, -m, http.server, "{port}", --bind, "{host}"]',
            "[sh, -c, \"trap '' TERM; python -m http.server {port} --bind {host}; sleep 600\"]",
        )
        assert run.cli("chute", "deploy", "-", stdin=stubborn + "grace: 500\n").returncode == 0
        run.interrupt()
        until(lambda: "stopping everything" in run.output())
        run.interrupt()
        assert run.wait(30) == 130, run.output()
        assert run.alive() == []

    def test_leaves_nothing_behind_when_it_is_killed(self, run: UpRun) -> None:
        run.start("--no-demo")
        assert run.cli("chute", "deploy", "-", stdin=HELLO).returncode == 0
        assert run.process is not None
        run.process.kill()
        run.process.wait()
        until(lambda: not run.alive(), 40, "the end of all children")
        assert run.bound_ports() == []

    def test_the_next_start_ends_what_a_killed_warden_could_not(self, run: UpRun) -> None:
        run.start("--no-demo")
        assert run.cli("chute", "deploy", "-", stdin=HELLO).returncode == 0
        assert run.process is not None
        chutes = run.workload_processes()
        assert chutes
        wardens = [p for p in marked("GPUPOOL_HOME", str(run.home)) if b"warden" in _command_line(p.pid)]
        assert len(wardens) == 1
        for process in (*wardens, run.role("agent")):
            process.signal(signal.SIGKILL)
        run.process.kill()
        run.process.wait()
        assert run.alive()
        again = run.once("--no-demo")
        assert again.returncode == 0, again.stderr
        assert "that an earlier run left behind" in again.stdout
        assert not any(process.alive() for process in chutes)
        assert run.alive() == []

    def test_stopped_before_it_showed_anything_is_no_success(self, run: UpRun) -> None:
        run.begin("--once")
        until(lambda: "starting control" in run.output())
        run.interrupt()
        assert run.wait(30) == 130, run.output()
        assert run.alive() == []


class TestRevival:
    def test_a_killed_agent_comes_back_and_adopts_its_chute(self, run: UpRun) -> None:
        run.start("--no-demo")
        assert run.cli("chute", "deploy", "-", stdin=HELLO).returncode == 0
        before, old = run.workload_processes(), run.role("agent")
        old.signal(signal.SIGKILL)
        until(lambda: run.role("agent") != old, 30, "a new agent")
        until(lambda: run.cli("status").returncode == 0, 60, "an active chute")
        assert run.workload_processes() == before
        assert len(run.json("chute", "show", "hello")["placements"]) == 1

    def test_a_killed_control_comes_back_and_the_chute_goes_on(self, run: UpRun) -> None:
        run.start("--no-demo")
        assert run.cli("chute", "deploy", "-", stdin=HELLO).returncode == 0
        before, old = run.workload_processes(), run.role("control")
        old.signal(signal.SIGKILL)
        until(lambda: run.role("control") != old, 30, "a new control")
        until(lambda: run.cli("status").returncode == 0, 60, "an active chute")
        assert run.workload_processes() == before
        assert len(run.json("chute", "show", "hello")["placements"]) == 1


class TestCommands:
    def test_a_chute_that_never_gets_healthy_says_why(self, bare: UpRun) -> None:
        failed = bare.cli("chute", "deploy", "-", stdin=UNHEALTHY)
        assert failed.returncode == 5
        assert "unhealthy" in failed.stderr
        assert "gpupool chute logs never-well" in failed.stderr
        assert "awake" in bare.cli("chute", "logs", "never-well").stdout
        assert bare.cli("chute", "delete", "never-well", "--yes").returncode == 0

    def test_a_malformed_spec_is_refused_with_its_place(self, bare: UpRun) -> None:
        refused = bare.cli("chute", "deploy", "-", stdin="name: x\ncommand: [a]\nprot: 3\n")
        assert refused.returncode == 2
        assert "standard input:3:7: prot: unknown field" in refused.stderr
        assert bare.json("chute", "list") == []

    def test_deploy_show_and_delete(self, bare: UpRun) -> None:
        assert bare.cli("chute", "deploy", "-", stdin=HELLO).returncode == 0
        assert "unchanged" in bare.cli("chute", "deploy", "-", stdin=HELLO).stdout
        shown = bare.json("chute", "show", "hello")
        address = shown["placements"][0]["address"]
        assert httpx.get(f"http://{address}/", trust_env=False).status_code == 200
        assert bare.cli("chute", "delete", "hello", "--yes").returncode == 0
        until(lambda: not bare.workload_processes(), 30, "the chute's end")
        missing = bare.cli("chute", "show", "hello")
        assert missing.returncode == 4
        assert "hello" in missing.stderr

    def test_tells_when_the_pool_does_not_run(self, run: UpRun) -> None:
        assert run.once("--no-demo").returncode == 0
        absent = run.cli("status", "--control", f"http://127.0.0.1:{run.ports[0]}")
        assert absent.returncode == 8
        assert "What to do" in absent.stderr

    def test_prints_events_in_order(self, bare: UpRun) -> None:
        lines = bare.cli("events", "--json").stdout.splitlines()
        numbers = [json.loads(line)["seq"] for line in lines]
        assert numbers == sorted(set(numbers))
        assert any('"node.ready"' in line for line in lines)


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
