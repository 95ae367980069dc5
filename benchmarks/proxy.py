"""The proxy beside others in one run: requests a second, latency, memory; each with its target.

Servers and clients are one small C program (`proxy_parts/peers.c`, built here with the C compiler), so that Python is
measured in the proxy only. Every proxy runs the whole time, and they are loaded in turn, several rounds each, so that
a busy machine hits all of them alike; medians are told. Ours writes its log line for each request to a file.

    python benchmarks/proxy.py                        ours, and the floor of Python (`proxy_parts/floor.py`)
    python benchmarks/proxy.py --real PATH            also the original chia_recompute_proxy
    apt-get install haproxy                           then the HTTP path is measured beside HAProxy, too
    python benchmarks/proxy.py --other "other-proxy --listen 127.0.0.1:{port} --to {node} --to {other}"

Figures of two runs can't be compared, nor any with those of another machine.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpupool.recompute.proxy.compiled import prefer

PARTS: Final = Path(__file__).resolve().parent / "proxy_parts"
OURS: Final = (
    f"{sys.executable} -m gpupool recompute proxy --host 127.0.0.1 --port {{port}}"
    " --node {node} --node {other}"
)
FLOOR: Final = f"{sys.executable} {PARTS / 'floor.py'} {{port}} {{kind}} {{kept}} {{node}} {{other}}"
REAL: Final = "{path} --host 127.0.0.1 -p {port} -n {node} -n {other}"
HAPROXY: Final = """
global
    maxconn 8192
    nbthread 1
    log stdout format raw local0
defaults
    mode http
    option http-keep-alive
    option httplog
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend front
    bind 127.0.0.1:{port}
    log global
    default_backend servers
backend servers
    balance leastconn
    http-reuse always
    server one {node} maxconn 64
    server two {other} maxconn 64
"""


@dataclass
class Figures:
    """Of one proxy with one number of clients, a value a round."""

    rates: list[float] = field(default_factory=list)
    middle: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    effort: list[float] = field(default_factory=list)
    """Processor time of the proxy for each answer, in microseconds: the figure that a busy machine spoils least."""
    failed: int = 0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return statistics.median(self.rates)

    @property
    def cpu_us(self) -> float:
        """Processor time of an answer."""
        return statistics.median(self.effort)

    def __str__(self) -> str:
        middle, high = statistics.median(self.middle), statistics.median(self.high)
        return (
            f"{self.rate:8.0f} req/s  p50 {middle:8.2f} ms  p99 {high:8.2f} ms  CPU {self.cpu_us:5.0f} us"
            f"  {self.failed} failed"
        )


@dataclass
class Running:
    """A proxy under test."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    figures: dict[int, Figures] = field(default_factory=dict)

    @property
    def cpu_seconds(self) -> float:
        """Processor time so far, of user and kernel."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_mb(self) -> float:
        """Resident memory in MB of a million bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) * 1024 / 1e6


class Bench:
    """What runs for the measurements."""

    def __init__(self, stack: contextlib.ExitStack, peers: Path, folder: Path) -> None:
        self._stack, self._peers, self._folder = stack, peers, folder

    def server(self, kind: str, delay_ms: float = 0) -> str:
        """Start a server and return its address."""
        port = free_port()
        self._start("server", [str(self._peers), "serve", str(port), kind, str(delay_ms)])
        wait_for(port)
        return f"127.0.0.1:{port}"

    def proxy(self, name: str, command: str, **more: str) -> Running:
        """Start a proxy; ``command`` may name {port} and what ``more`` holds."""
        port = free_port()
        words = [word.format(port=port, **more) for word in shlex.split(command)]
        running = Running(name, port, self._start(name, words))
        wait_for(port)
        return running

    def haproxy(self, program: str, node: str, other: str) -> Running:
        """Start HAProxy with leastconn, kept connections, and a log line for each request."""
        port = free_port()
        config = self._folder / "haproxy.cfg"
        config.write_text(HAPROXY.format(port=port, node=node, other=other))
        running = Running("haproxy", port, self._start("haproxy", [program, "-db", "-f", str(config)]))
        wait_for(port)
        return running

    def _start(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._folder / f"{name}-{len(words)}.log").open("wb"))
        environment = os.environ | {"GPUPOOL_HOME": str(self._folder / "home")}
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def ask(self, running: Running, kind: str, clients: int, seconds: float, how: str) -> None:
        """Load one proxy and take its figures."""
        words = [self._peers, "ask", str(running.port), kind, str(clients), str(seconds), how]
        before = running.cpu_seconds
        told = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True).stdout
        answers, failed, length, middle, high = map(float, told.split())
        figures = running.figures.setdefault(clients, Figures())
        figures.rates.append(answers / length)
        figures.middle.append(middle)
        figures.high.append(high)
        figures.effort.append((running.cpu_seconds - before) * 1e6 / max(1, answers))
        figures.failed += int(failed)

    def compare(self, proxies: list[Running], kind: str, given: argparse.Namespace, how: str) -> None:
        """Load all proxies in turn with each number of clients, and tell."""
        for running in proxies:
            self.ask(running, kind, 8, 2.0, how)
        for clients in given.clients:
            for running in proxies:
                running.figures.pop(clients, None)
            for _ in range(given.rounds):
                for running in proxies:
                    self.ask(running, kind, clients, given.seconds, how)
            for running in proxies:
                print(f"{running.name:14}{clients:5} clients  {running.figures[clients]}", flush=True)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until somebody listens."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"nothing listens on port {port}")


def verdict(what: str, value: float, target: float, *, below: bool = False) -> None:
    """Print a figure beside its target."""
    met = value < target if below else value >= target
    sign = "<" if below else ">="
    print(f"   {'met   ' if met else 'MISSED'} {what}: {value:.2f} (target {sign} {target:g})", flush=True)


def ratios(ours: Running, other: Running, targets: dict[int, float]) -> None:
    """Print our rate over the other's for each number of clients."""
    for clients, figures in ours.figures.items():
        if clients in targets and clients in other.figures:
            verdict(
                f"{clients} clients, ours / {other.name}",
                figures.rate / other.figures[clients].rate,
                targets[clients],
            )


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """Build the peers, and end everything afterwards."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(
            "this benchmark builds a small C program: install a C compiler (apt-get install gcc)"
        )
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        peers = folder / "peers"
        subprocess.run([compiler, "-O2", "-o", str(peers), str(PARTS / "peers.c")], check=True)
        yield Bench(stack, peers, folder)


def frames(given: argparse.Namespace) -> None:
    """Harvesters' way: frames, one connection a request."""
    print("== frames, one connection a request, two servers without delay")
    with bench() as now:
        node, other = now.server("frames"), now.server("frames")
        ours = now.proxy("gpupool", OURS, node=node, other=other)
        floors = [
            now.proxy(f"floor, kept {kept}", FLOOR, kind="frames", kept=str(kept), node=node, other=other)
            for kept in (0, 4)
        ]
        extra = [
            now.proxy(f"other {n}", text, node=node, other=other) for n, text in enumerate(given.other, 1)
        ]
        if given.real:
            extra.append(now.proxy("original", REAL, path=given.real, node=node, other=other))
        now.compare([ours, *floors, *extra], "frames", given, "anew")
        ratios(ours, floors[0], {16: 0.9, 100: 0.8, 1000: 0.8})
        for running in extra:
            ratios(ours, running, dict.fromkeys(given.clients, 1.0))
    with bench() as now:
        ours = now.proxy("gpupool", OURS, node=now.server("frames"), other=now.server("frames"))
        now.ask(ours, "frames", 1000, given.seconds, "keep")
        verdict("MB resident with 1000 clients connected", ours.resident_mb, 40, below=True)


def unequal(given: argparse.Namespace) -> None:
    """Two servers of 10 and 100 ms: the sum of what they can do is 64 / 0.01 + 64 / 0.1 = 7040 a second at most."""
    print("== frames, servers of 10 and 100 ms, 64 clients, 64 connections a server")
    with bench() as now:
        quick, slow = now.server("frames", 10), now.server("frames", 100)
        ours = now.proxy("gpupool", OURS + " --sockets 64", node=quick, other=slow)
        now.ask(ours, "frames", 64, 5.0, "anew")
        ours.figures.clear()
        for _ in range(given.rounds):
            now.ask(ours, "frames", 64, given.seconds, "anew")
        print(f"{ours.name:14}   64 clients  {ours.figures[64]}")
        verdict("req/s over servers of 10 and 100 ms", ours.figures[64].rate, 2900)


def http(given: argparse.Namespace) -> None:
    """Our clients' way, HTTP, beside HAProxy where there is one and what a bare loop can do: one thread of each."""
    program = given.haproxy or shutil.which("haproxy")
    with bench() as now:
        node, other = now.server("http"), now.server("http")
        ours = now.proxy("gpupool", OURS + " --no-check-answers", node=node, other=other)
        floor = now.proxy("floor", FLOOR, kind="http", kept="1000", node=node, other=other)
        beside = [now.haproxy(program, node, other)] if program else []
        for how, told in (("anew", "one connection a request"), ("keep", "kept connections")):
            form = "compiled" if prefer() is None else "interpreted"
            print(
                f"== HTTP, {told}, two servers without delay (answers are passed on, not checked); ours {form}"
            )
            now.compare([ours, floor, *beside], "http", given, how)
            for running in beside:
                ratios(ours, running, dict.fromkeys(given.clients, 0.5))
            for clients in given.clients:
                beyond = ours.figures[clients].cpu_us - floor.figures[clients].cpu_us
                print(
                    f"   {clients} clients, our processor time an answer beyond the floor's: {beyond:.0f} us"
                )
    if not program:
        print("   HAProxy is not installed: `apt-get install haproxy`, or name it with --haproxy PATH")


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", action="append", default=[], metavar="COMMAND", help="another frame proxy")
    parser.add_argument("--real", metavar="PATH", help="the original chia_recompute_proxy")
    parser.add_argument("--haproxy", metavar="PATH", help="HAProxy, where it is not on PATH")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 100, 1000])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["frames", "unequal", "http"], action="append")
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load of the last minute before the run: {os.getloadavg()[0]:.1f}")
    for part in (frames, unequal, http):
        if not given.only or part.__name__ in given.only:
            part(given)
    print(f"load of the last minute after the run: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
