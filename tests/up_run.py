"""A real ``gpupool up`` in a folder and on ports of its own, and ways to see what it left behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpupool.cli.up.leftovers import MARK
from gpupool.core.home import Home
from gpupool.core.processes import ProcessIdentity, identify, marked
from gpupool.runtimes.process.confinement import FIRST_UID, Wall, look

CHECKOUT = Path(__file__).resolve().parent.parent


def free_ports(count: int) -> list[int]:
    """Return distinct ports that were free a moment ago."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def until(look: Callable[[], Any], seconds: float = 60.0, what: str = "it") -> Any:
    """Return the first true value of ``look``; fail when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := look()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.05)
    return value


def share_kernels(home: Path) -> None:
    """Give a new state folder the compiled kernels, which are paid for once in a whole test run."""
    cache = home / "cache"
    cache.mkdir(parents=True, mode=0o700)
    shared = Path(os.environ["NUMBA_CACHE_DIR"])
    shared.mkdir(parents=True, exist_ok=True)
    (cache / "numba").symlink_to(shared, target_is_directory=True)
    if look().wall is Wall.OWN_USER:
        own = cache / f"numba-{FIRST_UID}"
        shutil.copytree(shared, own)
        for path in (own, *own.rglob("*")):
            os.chown(path, FIRST_UID, FIRST_UID)


@dataclass
class UpRun:
    """One state folder with its ports, and the ``up`` that runs from it."""

    home: Path
    ports: list[int] = field(default_factory=lambda: free_ports(3))
    process: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        share_kernels(self.home)

    def arguments(self, *more: str) -> list[str]:
        """Return the command line of ``up`` with this folder's ports."""
        control, gateway, recompute = map(str, self.ports)
        options = ["--control-port", control, "--gateway-port", gateway, "--recompute-port", recompute]
        return [sys.executable, "-m", "gpupool", "up", *options, *more]

    @property
    def env(self) -> dict[str, str]:
        """The environment of every command of this pool."""
        return {**os.environ, "GPUPOOL_HOME": str(self.home), "PYTHONPATH": str(CHECKOUT / "src")}

    def once(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Run ``up --once`` to its end."""
        return subprocess.run(
            self.arguments("--once", *more),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    def start(self, *more: str) -> None:
        """Start ``up`` and wait until it says that it is up."""
        self.begin(*more)
        until(self._is_up, 100, "up")

    def begin(self, *more: str) -> None:
        """Start ``up``; its output goes to ``up.out`` in the folder."""
        out = (self.home / "up.out").open("w")
        with out:
            self.process = subprocess.Popen(
                self.arguments(*more), env=self.env, stdout=out, stderr=subprocess.STDOUT, text=True
            )

    def _is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output()
        return "up; stop with Ctrl-C" in self.output()

    def output(self) -> str:
        """Return what ``up`` has printed so far."""
        return (self.home / "up.out").read_text()

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)

    def wait(self, seconds: float = 60.0) -> int:
        """Return the exit code of ``up``."""
        assert self.process is not None
        return self.process.wait(seconds)

    def cli(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run another command of this pool to its end."""
        return subprocess.run(
            [sys.executable, "-m", "gpupool", *arguments],
            env=self.env, input=stdin, capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip

    def json(self, *arguments: str) -> Any:
        """Return the parsed output of a command that prints JSON, whatever its exit code."""
        return json.loads(self.cli(*arguments, "--json").stdout)

    def role(self, role: str) -> ProcessIdentity:
        """Return the process of a role by its record."""
        record = json.loads((self.home / "run" / f"{role}.json").read_text())
        return ProcessIdentity(**record["process"])

    def workload_processes(self) -> list[ProcessIdentity]:
        """Return the live processes that the agent's run records name."""
        found = []
        for path in (self.home / "agent" / "runs").glob("*/record.json"):
            process = json.loads(path.read_text()).get("process")
            identity = identify(process["pid"]) if process else None
            if identity is not None and identity.start_ticks == process["start_ticks"]:
                found.append(identity)
        return found

    def alive(self) -> list[ProcessIdentity]:
        """Return everything that still runs from this folder."""
        return [*marked(MARK, str(Home(self.home).root)), *self.workload_processes()]

    def bound_ports(self) -> list[int]:
        """Return which of the folder's ports still answer."""
        bound = []
        for port in self.ports:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    bound.append(port)
        return bound


@contextmanager
def up_run(home: Path) -> Iterator[UpRun]:
    """Yield a pool that is ended at the end whatever the test did."""
    run = UpRun(home)
    try:
        yield run
    finally:
        if run.process is not None and run.process.poll() is None:
            run.process.kill()
            run.process.wait()
        for process in run.alive():
            process.signal(signal.SIGKILL)
