"""The layouts of the operators' guide as one small farm that runs while a test disturbs it.

Machines 1 and 2 each hold a recompute server of ours and a Gigahorse server; machine 1 also a proxy, beside its
server. Machine 3 holds another proxy, machine 4 none: it is where harvesters without a card are. All harvesters ask
all the time, so one disturbance of machine 1 is seen by every layout at once:

| load | on machine | hosts | layout |
| --- | --- | --- | --- |
| two | 4 | servers 1 and 2 | two servers that share the load |
| own | 1 | the server beside it, and server 2 | a client that is a server; with ``mutual``: sharing with each other |
| mutual | 2 | the server beside it, and server 1 | the same the other way round |
| proxied | 4 | both proxies | proxies in front of many, one of them beside a server |
| lone | 4 | the proxy on machine 3 | the same without a second proxy |
| frames | 4 | both proxies | the same for Gigahorse clients and servers |
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from layout_harvester import Line
from layout_machines import Network
from polling import eventually

HERE = Path(__file__).resolve().parent
PATIENCE = 60.0
SERVERS = {"http1": 1, "frames1": 1, "http2": 2, "frames2": 2}
PROXIES = {"beside": 1, "apart": 3}
LONE_S = 25.0
"""How long a harvester with a single proxy waits: what Chia leaves it, more than a busy machine takes to start one."""
LISTS = {"two": 4, "own": 1, "mutual": 2}
"""Loads that know the servers themselves, with their machines."""
LOADS = ("two", "own", "mutual", "proxied", "lone", "frames")
MUTE = """
import socket, sys, time
with socket.create_server(("0.0.0.0", int(sys.argv[1]))) as listener:
    kept = []
    while True: kept.append(listener.accept())
"""
"""Takes every connection and never says a word."""
FULL = """
import socket, sys, time
with socket.socket() as listener:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", int(sys.argv[1])))
    listener.listen(0)
    fillers = [socket.socket() for _ in range(8)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
    while True: time.sleep(60)
"""
"""Has its queue of connections full, so that the system drops whatever else comes."""
READY = """
import sys, time, urllib.request
def ready():
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/readyz", timeout=5).status == 200
    except OSError:
        return False
while not ready(): time.sleep(0.1)
"""
"""Ends once a server of ours says that it is ready."""
_REQUEST = re.compile(
    r"^\[(\d+)\] Request .*forwarded to node (\S+) .*ms = ([\d.]+), tries = 1, result = ok", re.MULTILINE
)
_LISTENING = re.compile(r"^listening since ([\d.]+)", re.MULTILINE)
_FORWARDED = re.compile(r"forwarded to node (\S+) .*result = ok")


def free_ports(number: int) -> list[int]:
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


class Service:
    """One program of the farm, in a process group of its own, with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self._command, self.log, self._environment = list(command), log, environment
        self._child: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self, command: Sequence[str] | None = None) -> None:
        """Start it, or ``command`` in its place."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                command or self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to what it started."""
        assert self._child is not None
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    def kill(self) -> None:
        assert self._child is not None
        self.signal(signal.SIGKILL)
        self._child.wait()

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        assert self._child is not None
        self._child.terminate()
        return self._child.wait(PATIENCE)


class Harvester:
    """A running `layout_harvester`, and what it has said."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.lines: list[Line] = []
        self.child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.append(Line(**json.loads(line)))

    def ended(self) -> int:
        """Return its exit code once it has ended by itself and everything it said is here."""
        code = self.child.wait(PATIENCE)
        self._reader.join()
        return code

    def close(self) -> None:
        self.child.kill()
        self.ended()
        assert self.child.stdout is not None
        self.child.stdout.close()


class Farm:
    """Everything at work; use `running`."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self._folder = network, folder
        names = [*SERVERS, *PROXIES]
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        paths = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
        self._environment = os.environ | {"PYTHONPATH": paths, "GPUPOOL_HOME": str(folder / "home")}
        self.services: dict[str, Service] = {}
        self._loads: list[Harvester] = []

    def address(self, name: str) -> str:
        """Return ``host:port`` of a service."""
        return f"{self.network.address((SERVERS | PROXIES)[name])}:{self.ports[name]}"

    def start(self) -> None:
        for name, machine in SERVERS.items():
            self._serve(name, machine, self._server(name))
        self._await_ready()
        for name, machine in PROXIES.items():
            nodes = [self._seen_from(machine, server) for server in SERVERS]
            options = [word for node in nodes for word in ("-n", node)]
            self._serve(name, machine, ["recompute", "proxy", *options])
        proxies = ",".join(self.address(name) for name in PROXIES)
        both = [self.address("http1"), self.address("http2")]
        self._harvest(1, f"own={self._seen_from(1, 'http1')},{both[1]}")
        self._harvest(2, f"mutual={self._seen_from(2, 'http2')},{both[0]}")
        apart = self.address("apart")
        self._harvest(
            4,
            f"two={','.join(both)}",
            f"proxied={proxies}",
            f"lone@{LONE_S:g}={apart}",
            f"frames=frames:{proxies}",
        )

    def close(self) -> None:
        for load in self._loads:
            load.close()
        for service in self.services.values():
            service.kill()

    def harvester(self, machine: int, *words: str) -> Harvester:
        """Start a harvester more."""
        command = [sys.executable, str(HERE / "layout_harvester.py"), *words]
        return Harvester(self.network.on(machine, command), self._environment)

    def command(self, machine: int, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a ``gpupool recompute`` command on a machine to its end."""
        line = self.network.on(machine, [sys.executable, "-m", "gpupool", "recompute", *words])
        return subprocess.run(
            line, env=self._environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def on_port(self, name: str, program: str) -> None:
        """Start ``program`` on the port of a service that is down."""
        self.services[name].start(self._small(name, program))

    def _small(self, name: str, program: str) -> list[str]:
        command = [sys.executable, "-S", "-E", "-c", program, str(self.ports[name])]
        return self.network.on(SERVERS[name], command)

    def _await_ready(self) -> None:
        """Return once both servers of ours compute; harvesters that ask before would only slow that down."""
        for name in ("http1", "http2"):
            subprocess.run(self._small(name, READY), check=True, timeout=2 * PATIENCE)

    # -- what a test reads -----------------------------------------------------------------------------------

    def lines(self) -> dict[str, list[Line]]:
        """Return what every load has said so far."""
        said: dict[str, list[Line]] = {name: [] for name in LOADS}
        for harvester in self._loads:
            for line in list(harvester.lines):
                said[line.load].append(line)
        return said

    def mark(self) -> dict[str, int]:
        """Return how much every load has said so far, for `since`."""
        return {name: len(said) for name, said in self.lines().items()}

    def since(self, mark: dict[str, int]) -> dict[str, list[Line]]:
        """Return what every load has said after ``mark``."""
        return {name: said[mark[name] :] for name, said in self.lines().items()}

    def faults(self, mark: dict[str, int]) -> dict[str, list[str]]:
        """Return what failed after ``mark``, by load."""
        said = self.since(mark)
        faults = {name: [line.fault for line in lines if line.fault] for name, lines in said.items()}
        return {name: found for name, found in faults.items() if found}

    def forwarded(self, proxy: str) -> dict[str, int]:
        """Return how many requests each node has answered, by the proxy's log."""
        counts: dict[str, int] = {}
        for node in _FORWARDED.findall(self.services[proxy].log.read_text(errors="replace")):
            counts[node] = counts.get(node, 0) + 1
        return counts

    def took_part_after(self, proxy: str, server: str) -> float:
        """Return how many seconds after a Gigahorse server began to listen it was given its first request.

        Both ends of the time are of the same clock: the server's line, and the proxy's line about that request, less the
        time that it took.
        """
        since = float(_LISTENING.findall(self.services[server].log.read_text())[-1])
        node = self._seen_from(PROXIES[proxy], server)
        lines = _REQUEST.findall(self.services[proxy].log.read_text(errors="replace"))
        asked = [int(told) / 1000 - float(ms) / 1000 for told, name, ms in lines if name == node]
        return min(at for at in asked if at > since) - since

    async def carried(self, count: int, loads: Sequence[str] = LOADS) -> None:
        """Return once every load has been answered ``count`` times more."""
        mark = self.mark()

        def enough() -> bool:
            said = self.since(mark)
            return all(sum(not line.fault for line in said[name]) >= count for name in loads)

        await eventually(enough, PATIENCE, f"{count} more answers for each of {', '.join(loads)}")

    async def used(self, *servers: str, ever: bool = False) -> None:
        """Return once these servers have answered to everyone who may ask them, from now on.

        ``ever``: since the farm began.
        """
        mark = dict.fromkeys(LOADS, 0) if ever else self.mark()
        before = {proxy: {} if ever else self.forwarded(proxy) for proxy in PROXIES}

        def missing() -> list[str]:
            said = self.since(mark)
            unused = [
                f"{load} -> {name}"
                for name in servers
                for load, machine in LISTS.items()
                if name.startswith("http")
                and not any(line.host == self._seen_from(machine, name) for line in said[load])
            ]
            for proxy, machine in PROXIES.items():
                now = self.forwarded(proxy)
                nodes = {name: self._seen_from(machine, name) for name in servers}
                unused += [
                    f"{proxy} -> {name}"
                    for name, node in nodes.items()
                    if now.get(node, 0) <= before[proxy].get(node, 0)
                ]
            return unused

        try:
            await eventually(lambda: not missing(), PATIENCE, f"everyone using {' and '.join(servers)}")
        except AssertionError as error:
            error.add_note(f"not used: {', '.join(missing())}")
            raise

    # -- inside ----------------------------------------------------------------------------------------------

    def _seen_from(self, machine: int, name: str) -> str:
        """Return a server's address as it is written on a machine: its own by ``127.0.0.1``."""
        if SERVERS[name] == machine and self.network.drops:
            return f"127.0.0.1:{self.ports[name]}"
        return self.address(name)

    def _server(self, name: str) -> list[str]:
        if name.startswith("http"):
            return ["recompute", "serve", "-r", "1"]
        return [str(HERE / "layout_gigahorse.py"), name, str(self.ports[name])]

    def _serve(self, name: str, machine: int, words: list[str]) -> None:
        command = [sys.executable, *words]
        if words[0] == "recompute":
            command = [
                sys.executable,
                "-m",
                "gpupool",
                *words,
                "--host",
                "0.0.0.0",
                "-p",
                str(self.ports[name]),
            ]
        log = self._folder / f"{name}.log"
        environment = self._environment | {"GPUPOOL_HOME": str(self._folder / name)}
        self.services[name] = Service(self.network.on(machine, command), log, environment)

    def _harvest(self, machine: int, *loads: str) -> None:
        self._loads.append(self.harvester(machine, *loads))


@contextmanager
def slowed(*services: Service, part: float = 0.1) -> Iterator[None]:
    """Let programs run only ``part`` of the time, as on a machine that is far too busy."""
    over = threading.Event()

    def throttle() -> None:
        while not over.is_set():
            for service in services:
                service.signal(signal.SIGSTOP)
            over.wait(0.2 * (1 - part))
            for service in services:
                service.signal(signal.SIGCONT)
            over.wait(0.2 * part)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def all_of(farm: Farm, names: Sequence[str], do: Callable[[Service], Any]) -> None:
    """Do the same to several services."""
    for name in names:
        do(farm.services[name])
