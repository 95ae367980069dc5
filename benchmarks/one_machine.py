"""The one-machine pool against its budgets: help, `up --once` cold and warm, and the memory of each process at rest.

Starts pools of its own in a temporary folder and on free ports. Limits of the design, on two quiet cores:
`--help` < 0.6 s, control ready < 2 s and < 120 MiB, agent < 80 MiB, `up --once` < 6 s warm.

Run: `.venv/bin/python benchmarks/one_machine.py [--json]`
"""

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

RUNS = 5


@dataclass(frozen=True)
class Figure:
    """One measured value, and its limit where the design sets one."""

    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def broken(self) -> bool:
        """Whether the limit is not kept."""
        return self.limit is not None and self.value >= self.limit


class Bench:
    """One state folder with ports of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with ExitStack() as stack:
            probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            ports = [str(probe.getsockname()[1]) for probe in probes]
        names = ("--control-port", "--gateway-port", "--recompute-port")
        self._options = [part for pair in zip(names, ports, strict=True) for part in pair]
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        self._env = {**kept, "GPUPOOL_HOME": str(home)}

    def command(self, *arguments: str) -> list[str]:
        """Return a command line of gpupool."""
        return [sys.executable, "-P", "-m", "gpupool", *arguments]

    def seconds(self, *arguments: str) -> float:
        """Return how long a command runs; it must succeed."""
        begun = time.perf_counter()
        subprocess.run(self.command(*arguments), env=self._env, check=True, capture_output=True)
        return time.perf_counter() - begun

    def once(self) -> float:
        """Return how long `up --once` runs."""
        return self.seconds("up", "--once", *self._options)

    def at_rest(self) -> list[Figure]:
        """Start the pool, and return control's time to ready and the memory of every process."""
        out = self.home / "up.out"
        with out.open("w") as file:
            up = subprocess.Popen(self.command("up", *self._options), env=self._env, stdout=file, stderr=file)
        try:
            while "up; stop with" not in (text := out.read_text()):
                if up.poll() is not None:
                    raise RuntimeError(text)
                time.sleep(0.05)
            ready = re.search(r"control ready after ([\d.]+) s", text)
            figures = [Figure("control ready", float(ready[1]) if ready else 0.0, "s", 2.0)]
            for role, limit in (("control", 120.0), ("agent", 80.0), ("gateway", None)):
                pid = json.loads((self.home / "run" / f"{role}.json").read_text())["process"]["pid"]
                figures.append(Figure(f"{role} at rest", resident_mib(pid), "MiB", limit))
            for path in sorted((self.home / "agent" / "runs").glob("*/record.json")):
                record = json.loads(path.read_text())
                if record["process"]:
                    name = record["order"]["workload_name"]
                    figures.append(Figure(f"{name} at rest", resident_mib(record["process"]["pid"]), "MiB"))
            return figures
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def main() -> int:
    """Print every figure; return 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpupool-bench-") as folder:
        bench = Bench(Path(folder) / "home")
        bench.home.mkdir(mode=0o700)
        help_seconds = statistics.median(bench.seconds("--help") for _ in range(RUNS))
        figures = [
            Figure("gpupool --help", help_seconds, "s", 0.6),
            Figure("up --once, empty state folder", bench.once(), "s", 45.0),
            Figure("up --once, warm", statistics.median(bench.once() for _ in range(3)), "s", 6.0),
            *bench.at_rest(),
        ]
    if arguments.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
    else:
        for figure in figures:
            limit = f"   limit {figure.limit:g}" if figure.limit is not None else ""
            mark = "   BROKEN" if figure.broken else ""
            print(f"{figure.name:<32} {figure.value:8.2f} {figure.unit}{limit}{mark}")
    return int(any(figure.broken for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
