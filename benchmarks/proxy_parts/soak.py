"""The proxy for many minutes under load while its servers die, freeze, slow down and come back: does anything grow?

Four servers of frames and two of HTTP; one of each kind is always well, so no lookup may fail. Every five seconds the
process is looked at: resident memory, open descriptors, tasks. The end is judged line by line, and by the exit code:
0 all well, 1 not.

    make soak                    ten minutes
    make soak ARGS="--minutes 60"
"""

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PARTS: Final = Path(__file__).resolve().parent
LOOK_SECONDS: Final = 5.0
SETTLE_SECONDS: Final = 8.0
"""Idle connections to servers are left after three."""
GROWTH_MB: Final = 3.0
"""What the allocator may keep between the second and the last quarter."""
SPARE: Final = 4
"""Descriptors and tasks that may be there at the end beyond those of the beginning (probes come and go)."""
CLIENTS: Final = (("frames", "anew", 8), ("frames", "keep", 8), ("http", "anew", 4), ("http", "keep", 4))


@dataclass
class Server:
    """A server that can be killed, frozen, slowed down and brought back, on one port."""

    peers: Path
    kind: str
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = None

    def begin(self, delay_ms: float = 10.0) -> None:
        """Serve, with a time for each answer."""
        if self.port == 0:
            self.port = free_port()
        words = [str(self.peers), "serve", str(self.port), self.kind, str(delay_ms)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self) -> None:
        """Be killed."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Keep all connections and do nothing."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)


@dataclass
class Seen:
    """What the process looked like, one value each time."""

    memory_mb: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)

    def look(self, pid: int, port: int) -> None:
        """Add one value each."""
        resident = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        tasks = re.search(r"^gpupool_proxy_tasks (\d+)", read(port, "/metrics"), re.MULTILINE)
        assert resident is not None
        assert tasks is not None
        self.memory_mb.append(int(resident[1]) * 1024 / 1e6)
        self.tasks.append(int(tasks[1]))
        self.descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))


class Load:
    """Clients of one sort, in pieces of ten seconds, until the end."""

    def __init__(self, peers: Path, port: int, until: float) -> None:
        self.answers = self.failed = 0
        self._peers, self._port, self._until = peers, port, until
        self._adding = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=one) for one in CLIENTS]
        for thread in self._threads:
            thread.start()

    def _run(self, kind: str, how: str, clients: int) -> None:
        while (left := self._until - time.monotonic()) > 0.5:
            seconds = str(min(10.0, left))
            words = [str(self._peers), "ask", str(self._port), kind, str(clients), seconds, how]
            told = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
            with self._adding:
                self.answers += int(told[0])
                self.failed += int(told[1])

    def end(self) -> None:
        """Wait for the last answers."""
        for thread in self._threads:
            thread.join()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read(port: int, path: str) -> str:
    """Return a page of the proxy."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def flap(server: Server, chance: random.Random) -> str:
    """Do something to a server; it is begun anew before each fault, so what it suffered before has an end."""
    server.end()
    what = chance.choice(("killed", "frozen", "slow", "back"))
    if what != "killed":
        server.begin(150.0 if what == "slow" else 10.0)
    if what == "frozen":
        server.freeze()
    return what


def soak(minutes: float, stack: contextlib.ExitStack) -> bool:
    """Run it, tell how it was, and return whether all was well."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("the soak builds a small C program: install a C compiler (apt-get install gcc)")
    peers = folder / "peers"
    subprocess.run([compiler, "-O2", "-o", str(peers), str(PARTS / "peers.c")], check=True)
    servers = [Server(peers, kind) for kind in ("frames",) * 4 + ("http",) * 2]
    for server in servers:
        server.begin()
        stack.callback(server.end)
    port = free_port()
    proxy = start_proxy(folder, port, servers, stack)
    seen, chance = Seen(), random.Random(4)
    wait_until_ready(port)
    seen.look(proxy.pid, port)
    print(f"{minutes:g} minutes, load of this machine before: {os.getloadavg()[0]:.1f}", flush=True)
    # The first of each kind stays well.
    faulty = [servers[1], servers[2], servers[3], servers[5]]
    counts = run_load(seen, proxy, port, peers, faulty, minutes, chance)
    time.sleep(SETTLE_SECONDS)
    seen.look(proxy.pid, port)
    return judge(seen, *counts)


def start_proxy(
    folder: Path, port: int, servers: list[Server], stack: contextlib.ExitStack
) -> "subprocess.Popen[bytes]":
    """Start the proxy in front of the servers, with its log in a file."""
    words = [sys.executable, "-m", "gpupool", "recompute", "proxy", "-p", str(port), "--no-check-answers"]
    for server in servers:
        words += ["-n", f"127.0.0.1:{server.port}"]
    log = stack.enter_context((folder / "proxy.log").open("wb"))
    environment = os.environ | {"GPUPOOL_HOME": str(folder / "home")}
    process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def wait_until_ready(port: int) -> None:
    """Wait until the proxy knows what all its servers speak."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        with contextlib.suppress(OSError):
            page = read(port, "/readyz")
            if '"frames": 4' in page and '"http": 2' in page:
                return
        time.sleep(0.2)
    raise SystemExit("the proxy did not become ready in a minute")


def run_load(
    seen: Seen,
    proxy: "subprocess.Popen[bytes]",
    port: int,
    peers: Path,
    faulty: list[Server],
    minutes: float,
    chance: random.Random,
) -> tuple[int, int, int]:
    """Load the proxy while servers flap; return answers, failures, and how often a server was changed."""
    until, changes = time.monotonic() + minutes * 60, 0
    load, told = Load(peers, port, until), time.monotonic()
    while time.monotonic() < until and proxy.poll() is None:
        what = flap(chance.choice(faulty), chance)
        changes += 1
        time.sleep(max(0.0, min(LOOK_SECONDS, until - time.monotonic())))
        seen.look(proxy.pid, port)
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(
                f"  {load.answers:9} answers  {load.failed} failed  {seen.memory_mb[-1]:6.1f} MB"
                f"  {seen.descriptors[-1]:4} descriptors  {seen.tasks[-1]:4} tasks  last: {what}",
                flush=True,
            )
    load.end()
    return load.answers, load.failed, changes


def judge(seen: Seen, answers: int, failed: int, changes: int) -> bool:
    """Print a line for each thing that must hold; return whether all do."""
    quarter = max(1, len(seen.memory_mb) // 4)
    early = statistics.median(seen.memory_mb[quarter : 2 * quarter] or seen.memory_mb)
    late = statistics.median(seen.memory_mb[-quarter:])
    checks = [
        ("lookups that failed", failed, 0),
        ("MB of memory grown from the second quarter to the last", round(late - early, 2), GROWTH_MB),
        ("descriptors left over", seen.descriptors[-1] - seen.descriptors[0], SPARE),
        ("tasks left over", seen.tasks[-1] - seen.tasks[0], SPARE),
    ]
    print(
        f"{answers} answers over {changes} changes of servers; at most {max(seen.memory_mb):.1f} MB,"
        f" {max(seen.descriptors)} descriptors, {max(seen.tasks)} tasks; load after: {os.getloadavg()[0]:.1f}"
    )
    for what, value, most in checks:
        print(f"   {'ok    ' if value <= most else 'FAILED'} {what}: {value} (at most {most:g})")
    return answers > 0 and all(value <= most for _, value, most in checks)


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        well = soak(given.minutes, stack)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
