"""Each check of doctor gives the right verdict on both sides of its limits, and says what to do."""

import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpupool.cli.checks import clocks, disk, folder, gpu, network, packages, running
from gpupool.cli.checks.all import run_checks
from gpupool.cli.checks.finding import Finding, Verdict, mib
from gpupool.cli.checks.network import Answer
from gpupool.cli.local import Kind, LocalProcess, LocalState, is_recompute
from gpupool.core.home import Home
from gpupool.core.processes import ProcessIdentity, identify_self
from gpupool.devices.nvml import NvmlLibrary

GOOD, WARN, FAIL = Verdict.GOOD, Verdict.WARN, Verdict.FAIL
UID = os.geteuid()
URL = "http://127.0.0.1:1"


def verdict(finding: Finding) -> Verdict:
    """Every finding that is not good says why and what to do."""
    if finding.verdict is not GOOD:
        assert finding.why
        assert finding.remedy
    return finding.verdict


def local(
    name: str = "control", state: LocalState = LocalState.RUNNING, kind: Kind = "pool", **more: Any
) -> LocalProcess:
    return LocalProcess(**{"name": name, "state": state, "kind": kind, "pid": 7, "why": "its reason", **more})


class TestFolder:
    def test_a_private_folder_of_ours_is_good(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        assert verdict(folder.check_folder(tmp_path, UID)) is GOOD

    def test_an_open_folder_fails(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o750)
        assert verdict(folder.check_folder(tmp_path, UID)) is FAIL

    def test_another_users_folder_fails(self, tmp_path: Path) -> None:
        assert verdict(folder.check_folder(tmp_path, UID + 1)) is FAIL

    def test_a_folder_to_be_made_warns(self, tmp_path: Path) -> None:
        assert verdict(folder.check_folder(tmp_path / "a" / "b", UID)) is WARN

    def test_a_file_in_its_place_fails(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert verdict(folder.check_folder(tmp_path / "file", UID)) is FAIL

    def test_an_open_secret_fails_and_an_open_log_warns(self, tmp_path: Path) -> None:
        home = Home(tmp_path / "pool").prepare()
        assert verdict(folder.check_modes(home, UID)) is GOOD
        log = home.logs / "control.log"
        log.touch(0o644)
        log.chmod(0o644)
        assert verdict(folder.check_modes(home, UID)) is WARN
        home.operator_token.touch()
        home.operator_token.chmod(0o640)
        finding = folder.check_modes(home, UID)
        assert verdict(finding) is FAIL
        assert str(home.operator_token) in (finding.why or "")

    def test_only_secrets_that_are_made_anew_are_to_be_removed(self, tmp_path: Path) -> None:
        home = Home(tmp_path / "pool").prepare()
        home.seal_key.touch()
        home.seal_key.chmod(0o644)
        remedy = folder.check_modes(home, UID).remedy or ""
        assert "remove" not in remedy
        assert "Keep every .key file" in remedy
        home.join_token.touch()
        home.join_token.chmod(0o644)
        assert "Then remove join.token and restart" in (folder.check_modes(home, UID).remedy or "")

    def test_missing_and_empty_tokens_fail(self, tmp_path: Path) -> None:
        home = Home(tmp_path / "pool")
        assert verdict(folder.check_tokens(home)) is GOOD
        home.prepare()
        for path in (home.operator_token, home.service_token, home.join_token):
            assert verdict(folder.check_tokens(home)) is FAIL
            path.write_text("x")
        assert verdict(folder.check_tokens(home)) is GOOD
        home.service_token.write_text("\n")
        assert "service.token" in (folder.check_tokens(home).why or "")


class TestDisk:
    @pytest.mark.parametrize(
        ("free", "expected"),
        [(0, FAIL), (499_999_999, FAIL), (500_000_000, WARN), (4_999_999_999, WARN), (5_000_000_000, GOOD)],
    )
    def test_space(self, free: int, expected: Verdict) -> None:
        assert verdict(disk.judge_space(free)) is expected

    @pytest.mark.parametrize(
        ("free", "total", "expected"),
        [
            (999, 10**6, FAIL),
            (1_000, 10**6, WARN),
            (19_999, 10**6, WARN),
            (20_000, 10**6, GOOD),
            (0, 0, GOOD),
        ],
    )
    def test_inodes(self, free: int, total: int, expected: Verdict) -> None:
        assert verdict(disk.judge_inodes(free, total)) is expected

    def test_space_of_a_folder_to_be_made_is_that_of_its_parent(self, tmp_path: Path) -> None:
        free = os.statvfs(tmp_path).f_bavail
        assert (disk.check_space(tmp_path / "a" / "b").measured == "0 MiB free") is (free == 0)
        assert disk.check_inodes(tmp_path / "a" / "b").measured

    def test_logs(self, tmp_path: Path) -> None:
        assert verdict(disk.check_logs(tmp_path / "none")) is GOOD
        with (tmp_path / "agent.log").open("wb") as file:
            file.truncate(disk.WARN_LOGS + 1)
        assert "agent.log" in (disk.check_logs(tmp_path).why or "")

    def test_sizes_are_readable(self) -> None:
        assert mib(3 * 2**20) == "3 MiB"
        assert mib(3 * 2**29) == "1.5 GiB"


class TestProcesses:
    def test_all_down_is_worth_a_word(self) -> None:
        finding = running.check_up(None, [local(state=LocalState.OFF)])
        assert verdict(finding) is WARN
        assert "./up" in (finding.remedy or "")

    def test_running_without_an_up_is_good(self) -> None:
        assert verdict(running.check_up(None, [local()])) is GOOD

    def test_a_dead_child_of_a_running_up_fails(self) -> None:
        finding = running.check_up(1, [local(), local("gateway", LocalState.DIED)])
        assert verdict(finding) is FAIL
        assert "gateway does not run: its reason" in (finding.why or "")

    def test_a_frozen_one_fails(self) -> None:
        assert verdict(running.check_up(None, [local(state=LocalState.FROZEN)])) is FAIL

    def test_a_chute_that_is_called_like_a_role_is_not_one(self) -> None:
        assert verdict(running.check_up(1, [local(), local("control", LocalState.DIED, "chute")])) is GOOD

    @pytest.mark.parametrize("up", [None, 1])
    def test_records_of_the_dead_warn(self, up: int | None) -> None:
        assert verdict(running.check_records(up, [local(), local("agent", LocalState.DIED)])) is WARN
        assert verdict(running.check_records(up, [local(state=LocalState.OFF, pid=None)])) is GOOD

    def test_what_runs_without_an_up_is_a_leftover(self) -> None:
        ours = [ProcessIdentity(9, 1, "boot")]
        assert verdict(running.check_leftovers(1, ours, [])) is GOOD
        assert verdict(running.check_leftovers(None, [], [])) is GOOD
        assert verdict(running.check_leftovers(None, ours, [])) is WARN

    def test_a_workload_whose_agent_is_gone_is_a_leftover(self) -> None:
        chute = local("demo", kind="chute", pid=11)
        agentless = running.check_leftovers(None, [], [local("agent", LocalState.DIED), chute])
        assert verdict(agentless) is WARN
        assert "pid 11" in (agentless.why or "")
        # An agent that a service manager runs looks after its own.
        assert verdict(running.check_leftovers(None, [], [local("agent"), chute])) is GOOD

    def test_the_recompute_server_is_known_by_its_command(self) -> None:
        assert is_recompute(("python", "-m", "gpupool", "recompute", "serve", "--port", "1"))
        assert not is_recompute(("python", "-m", "recompute"))


class TestNetwork:
    def test_ports(self, free_port: int) -> None:
        assert verdict(network.check_port("control", str(free_port), "--control-port")) is GOOD
        with socket.create_server(("127.0.0.1", 0)) as taken:
            finding = network.check_port("control", str(taken.getsockname()[1]), "--control-port")
        assert verdict(finding) is WARN
        assert f"pid {os.getpid()}" in finding.measured
        assert "--control-port" in (finding.remedy or "")

    @pytest.mark.parametrize(
        ("alive", "ready", "expected"),
        [
            (Answer(status=200, instance_id="mine"), Answer(status=200), GOOD),
            (Answer(status=200, instance_id="mine"), Answer(status=503), WARN),
            (Answer(status=200, instance_id="mine"), Answer(fault="no answer"), WARN),
            (Answer(status=200, instance_id="other"), Answer(status=200), FAIL),
            (Answer(status=200), Answer(status=200), FAIL),
            (Answer(fault="refused"), Answer(fault="refused"), FAIL),
        ],
    )
    def test_who_answers(self, alive: Answer, ready: Answer, expected: Verdict) -> None:
        answers = {f"{URL}/healthz": alive, f"{URL}/readyz": ready}
        process = local(address=URL, instance_id="mine")
        assert verdict(network.check_answer(process, answers.__getitem__)) is expected

    def test_a_silent_server_is_told_and_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(network, "ANSWER_SECONDS", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            told = network.ask(f"http://127.0.0.1:{silent.getsockname()[1]}/healthz")
        assert told.fault is not None
        assert "no answer within" in told.fault

    def test_a_refused_and_a_strange_address_are_told(self, free_port: int) -> None:
        assert network.ask(f"http://127.0.0.1:{free_port}/healthz").fault
        assert network.ask("http://127.0.0.1:999999/").fault


class TestClock:
    NOW = datetime(2026, 6, 1, tzinfo=UTC)

    def test_a_clock_before_this_program_fails(self) -> None:
        assert verdict(clocks.check_date(datetime(1970, 1, 1, tzinfo=UTC))) is FAIL
        assert verdict(clocks.check_date(self.NOW)) is GOOD

    @pytest.mark.parametrize(("kept", "expected"), [(True, GOOD), (False, WARN), (None, GOOD)])
    def test_service(self, kept: bool | None, expected: Verdict) -> None:
        assert verdict(clocks.check_kept(lambda: kept)) is expected

    def test_the_kernel_can_be_asked(self) -> None:
        assert clocks.kernel_synchronized() in {True, False, None}

    @pytest.mark.parametrize(
        ("ahead", "expected"), [(0, GOOD), (3, GOOD), (-4, GOOD), (-6, WARN), (61, WARN), (-3600, WARN)]
    )
    def test_steps(self, ahead: float, expected: Verdict) -> None:
        assert verdict(clocks.check_step(1000.0, 1000.0 + ahead)) is expected

    def test_the_start_of_this_process_is_in_the_past(self) -> None:
        assert 0 < clocks.started_at(identify_self()) <= datetime.now(UTC).timestamp()

    @pytest.mark.parametrize(("apart", "expected"), [(0, GOOD), (29, GOOD), (31, WARN), (301, FAIL)])
    def test_skew(self, apart: int, expected: Verdict) -> None:
        date = format_datetime(self.NOW + timedelta(seconds=apart))
        assert verdict(clocks.check_skew(date, self.NOW)) is expected

    @pytest.mark.parametrize("date", [None, "", "yesterday"])
    def test_no_date_is_no_fault(self, date: str | None) -> None:
        assert verdict(clocks.check_skew(date, self.NOW)) is GOOD


class TestPackages:
    LOCK = "aa==1.0 \\\n    --hash=sha256:0\nbb==2.0 ; sys_platform == 'win32' \\\n    --hash=sha256:0\n"

    @pytest.mark.parametrize(
        ("installed", "expected"),
        [({"aa": "1.0"}, GOOD), ({"aa": "1.0", "bb": "2.0"}, GOOD), ({"aa": "1.1"}, WARN), ({}, WARN)],
    )
    def test_locks(self, tmp_path: Path, installed: dict[str, str], expected: Verdict) -> None:
        lock = tmp_path / "up.txt"
        lock.write_text(self.LOCK)
        assert verdict(packages.check_packages(lock, installed.get)) is expected

    def test_outside_a_checkout_there_is_nothing_to_compare(self, tmp_path: Path) -> None:
        assert verdict(packages.check_packages(None)) is GOOD
        assert verdict(packages.check_packages(tmp_path / "none")) is GOOD

    def test_this_checkouts_lock_is_found_and_read(self, checkout: Path) -> None:
        lock = packages.lock_of_checkout()
        assert lock == checkout / "locks" / "up.txt"
        assert len(packages.pins_of(lock.read_text())) > 20

    def test_python(self) -> None:
        assert verdict(packages.check_python()) is GOOD
        assert verdict(packages.check_python((3, 10, 9))) is FAIL

    def test_extras(self) -> None:
        assert verdict(packages.check_extras(lambda name: True)) is GOOD
        assert verdict(packages.check_extras(lambda name: name != "pyopencl")) is GOOD
        assert verdict(packages.check_extras(lambda name: name != "numba")) is WARN


class DriverError(Exception):
    """What the stand-in of the library raises."""


def library(**functions: Callable[..., Any]) -> Callable[[], NvmlLibrary]:
    whole: dict[str, Any] = {
        "NVMLError": DriverError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda handle: None,
    }
    return lambda: cast(NvmlLibrary, SimpleNamespace(**{**whole, **functions}))


def refuses(*_: Any) -> None:
    raise DriverError("Driver/library version mismatch")


class TestGpu:
    def test_no_driver_is_fine(self) -> None:
        assert verdict(gpu.check_nvml(lambda: None, ())) is GOOD

    def test_a_module_without_its_library_warns(self, tmp_path: Path) -> None:
        assert verdict(gpu.check_nvml(lambda: None, (tmp_path,))) is WARN

    def test_a_driver_with_its_cards_is_good(self) -> None:
        finding = gpu.check_nvml(library())
        assert verdict(finding) is GOOD
        assert finding.measured == "NVIDIA 580.1, 2 cards"

    @pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo"])
    def test_a_driver_that_refuses_fails(self, function: str) -> None:
        finding = gpu.check_nvml(library(**{function: refuses}))
        assert verdict(finding) is FAIL
        assert "mismatch" in (finding.why or "")


class TestAll:
    def test_works_without_a_state_folder_and_makes_nothing(self, tmp_path: Path, free_port: int) -> None:
        home = Home(tmp_path / "none")
        ports = {f"GPUPOOL_{role}_PORT": str(free_port) for role in ("CONTROL", "GATEWAY", "RECOMPUTE")}
        findings = run_checks(home, ports)
        assert not home.root.exists()
        assert all(verdict(finding) is not FAIL for finding in findings)
        assert f"{free_port} is free" in [finding.measured for finding in findings]

    @pytest.mark.parametrize("wrong", ["x", "0", "99999", "-1"])
    def test_a_setting_that_is_no_port_fails(self, tmp_path: Path, wrong: str) -> None:
        findings = run_checks(Home(tmp_path / "none"), {"GPUPOOL_CONTROL_PORT": wrong})
        (finding,) = (one for one in findings if one.name == "port of control")
        assert verdict(finding) is FAIL
        assert "GPUPOOL_CONTROL_PORT" in (finding.remedy or "")

    def test_a_check_that_cannot_work_is_a_finding(self, tmp_path: Path) -> None:
        home = Home(tmp_path / "pool").prepare()
        home.database.mkdir()
        findings = {finding.name: finding for finding in run_checks(home, {})}
        assert verdict(findings["database"]) is FAIL
