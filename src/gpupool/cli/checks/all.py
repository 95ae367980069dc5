"""All checks, in the order in which a person would look: ground first, then what stands on it."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from gpupool.cli.checks import clocks, database, disk, folder, gpu, isolation, network, packages, running
from gpupool.cli.checks.finding import Finding, failed
from gpupool.cli.local import LocalProcess, LocalState, local_processes, up_pid
from gpupool.cli.up.leftovers import MARK
from gpupool.core.errors import GpupoolError
from gpupool.core.home import Home
from gpupool.core.processes import marked
from gpupool.core.records import ProcessRecord

PORTS: Final[Mapping[str, tuple[str, int]]] = {
    "control": ("GPUPOOL_CONTROL_PORT", 32000),
    "gateway": ("GPUPOOL_GATEWAY_PORT", 32080),
    "recompute": ("GPUPOOL_RECOMPUTE_PORT", 11989),
}
Check = Callable[[], Finding | Iterable[Finding]]


def run_checks(home: Home, environment: Mapping[str, str], get: network.Ask = network.ask) -> list[Finding]:
    """Return the findings of every check; a check that cannot do its work is a finding too. Changes nothing."""
    unreadable: list[Finding] = []
    processes: list[LocalProcess] = []
    try:
        processes = local_processes(home)
    except GpupoolError as error:
        unreadable.append(failed("process records", "not readable", error.message, error.remedy))
    checks: dict[str, Check] = {
        **_ground(home, processes, environment),
        **_processes(home, processes),
        **_network(processes, environment, get),
        **_clock(home, get),
        **_software(),
    }
    found = [finding for name, check in checks.items() for finding in _guarded(name, check)]
    return [*unreadable, *found]


def _guarded(name: str, check: Check) -> list[Finding]:
    try:
        found = check()
    except GpupoolError as error:
        return [failed(name, "not measured", error.message, error.remedy)]
    except OSError as error:
        return [failed(name, "not measured", f"{error}.", "Mend that, or run as the owner of the folder.")]
    return [found] if isinstance(found, Finding) else list(found)


def _ground(home: Home, processes: list[LocalProcess], environment: Mapping[str, str]) -> dict[str, Check]:
    uid = os.geteuid()
    in_use = any(p.kind == "pool" and p.name == "control" and p.exists for p in processes)
    return {
        "state folder": lambda: folder.check_folder(home.root, uid),
        "file rights": lambda: folder.check_modes(home, uid),
        "tokens": lambda: folder.check_tokens(home),
        "disk space": lambda: disk.check_space(home.root),
        "inodes": lambda: disk.check_inodes(home.root),
        "logs": lambda: disk.check_logs(home.logs),
        "database": lambda: database.check_database(
            home, in_use=in_use, url=environment.get("GPUPOOL_DATABASE_URL")
        ),
    }


def _processes(home: Home, processes: list[LocalProcess]) -> dict[str, Check]:
    up = up_pid(home)
    return {
        "processes": lambda: running.check_up(up, processes),
        "records": lambda: running.check_records(up, processes),
        "leftovers": lambda: running.check_leftovers(up, marked(MARK, str(home.root)), processes),
    }


def _network(
    processes: list[LocalProcess], environment: Mapping[str, str], get: network.Ask
) -> dict[str, Check]:
    running_now = [process for process in processes if process.state is LocalState.RUNNING]
    by_role = {p.name if p.kind == "pool" else p.kind: p for p in running_now}
    checks: dict[str, Check] = {}
    for role, (variable, default) in PORTS.items():
        process = by_role.get(role)
        if process is not None:
            checks[f"{role} answers"] = partial(network.check_answer, process, get)
            continue
        given, option = environment.get(variable) or str(default), f"--{role}-port or {variable}"
        checks[f"port of {role}"] = partial(network.check_port, role, given, option)
    return checks


def _clock(home: Home, get: network.Ask) -> dict[str, Check]:
    return {
        "clock": lambda: clocks.check_date(datetime.now(UTC)),
        "clock service": clocks.check_kept,
        "clock of control": lambda: list(_clock_of_control(home.run / "control.json", get)),
    }


def _clock_of_control(path: Path, get: network.Ask) -> Iterator[Finding]:
    """Yield what the running control and its record tell of the clock; nothing where none runs."""
    record = ProcessRecord.read(path)
    if record is not None and record.process.alive():
        yield clocks.check_step(clocks.started_at(record.process), path.stat().st_mtime)
        yield clocks.check_skew(get(f"{record.url}/healthz").date, datetime.now(UTC))


def _software() -> dict[str, Check]:
    return {
        "Python": packages.check_python,
        "packages": lambda: packages.check_packages(packages.lock_of_checkout()),
        "extras": packages.check_extras,
        "GPU driver": gpu.check_nvml,
        "isolation of workloads": isolation.check_isolation,
    }
