"""A harvester's machine and two others: Chia's own prover with our library in it, a sidecar, two recompute servers."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupool.harvester.building import compile_library
from gpupool.pos.proofs import pack_proof
from gpupool.recompute.demo import KnownProof
from layout_farm import READY, Service, free_ports
from minted_plots import mint

HERE: Final = Path(__file__).resolve().parent
PATIENCE: Final = 60.0
STOCK: Final = HERE / "stock_harvester.py"
PRELOADED_BY_PTH: Final = (
    "import ctypes, runpy, sys; ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL); del sys.argv[:2];"
    " runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""What a line in a .pth file comes to: the library is there before chiapos is."""


@dataclass(frozen=True)
class Plot:
    """A minted plot and what it holds."""

    path: Path
    level: int
    known: KnownProof

    def right(self, line: dict[str, object]) -> bool:
        """Tell whether a line of the harvester has the known answer."""
        known = self.known
        wanted = known.quality if line["kind"] == "quality" else pack_proof(known.xs, known.k)
        return line["found"] == [wanted.hex()]


def plots(folder: Path, level: int, proofs: Sequence[KnownProof]) -> list[Plot]:
    """Mint a plot for each proof."""
    return [
        Plot(mint(known, level, folder / f"c{level}-{known.plot_id.hex()[:8]}.plot"), level, known)
        for known in proofs
    ]


@contextmanager
def slowed(service: Service) -> Iterator[None]:
    """Let it run a third of the time."""
    ended = threading.Event()

    def slow() -> None:
        while not ended.is_set():
            service.signal(signal.SIGSTOP)
            ended.wait(0.2)
            service.signal(signal.SIGCONT)
            ended.wait(0.1)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Harvester:
    """A running stock harvester."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], given: Sequence[Plot]) -> None:
        self.plots = given
        self.lines: list[dict[str, object]] = []
        words = [f"{plot.known.challenge.hex()}={plot.path}" for plot in given]
        self.child = subprocess.Popen(
            [*command, *words], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.append(json.loads(line))

    def says(self, more: int) -> None:
        """Wait for so many lines more."""
        wanted, deadline = len(self.lines) + more, time.monotonic() + PATIENCE
        while len(self.lines) < wanted:
            assert self.child.poll() is None, "the harvester ended"
            assert time.monotonic() < deadline, f"{wanted - len(self.lines)} lines are missing"
            time.sleep(0.02)

    def ended(self, seconds: float = PATIENCE) -> list[dict[str, object]]:
        """Close its input, wait for its end and return all it said."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        assert self.child.wait(seconds) == 0
        self._reader.join()
        return self.lines

    def wrong(self) -> list[dict[str, object]]:
        """Return the lines that have not the known answer."""
        return [line for line in self.lines if not self.plots[int(str(line["plot"]))].right(line)]

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self._reader.join()
        for stream in (self.child.stdin, self.child.stdout):
            assert stream is not None
            stream.close()


class Farm:
    """Everything; use `farm`."""

    def __init__(self, folder: Path, servers: int) -> None:
        self.folder = folder
        self.library = folder / "shim.so"
        compile_library(self.library)
        self.ports = free_ports(servers)
        self.socket = folder / "sidecar.sock"
        self.log = folder / "shim.log"
        self._environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        } | {"PYTHONPATH": f"{HERE.parent / 'src'}{os.pathsep}{HERE}", "GPUPOOL_HOME": str(folder / "home")}
        self.servers = [
            self._service(f"server{port}", "serve", "--port", str(port), "-r", "1") for port in self.ports
        ]
        self.ready()
        nodes = [word for port in self.ports for word in ("-n", f"127.0.0.1:{port}")]
        self.sidecar = self._service("sidecar", "proxy", "--unix", str(self.socket), *nodes)
        deadline = time.monotonic() + PATIENCE
        while not self.socket.exists():
            assert time.monotonic() < deadline, self.sidecar.log.read_text()
            time.sleep(0.05)

    def _service(self, name: str, *words: str) -> Service:
        command = [sys.executable, "-m", "gpupool", "recompute", *words]
        return Service(command, self.folder / f"{name}.log", self._environment)

    def ready(self) -> None:
        """Return once all servers compute."""
        for port in self.ports:
            line = [sys.executable, "-S", "-E", "-c", READY, str(port)]
            subprocess.run(line, check=True, timeout=2 * PATIENCE)

    def environment(self, **settings: str) -> dict[str, str]:
        """Return a harvester's environment; settings as in `Shim`."""
        given = {"sidecar": f"unix:{self.socket}", "log": str(self.log), **settings}
        named = {f"GPUPOOL_HARVESTER_{name.upper()}": value for name, value in given.items()}
        return {"PATH": os.environ["PATH"], **named}

    @contextmanager
    def harvester(
        self,
        given: Sequence[Plot],
        *options: str,
        stock: bool = False,
        pth: bool = False,
        environment: dict[str, str] | None = None,
        preload: str = "",
    ) -> Iterator[Harvester]:
        """Run a harvester; ``stock``: as Chia ships it; ``preload``: libraries in front of ours."""
        variables = self.environment() if environment is None else environment
        if pth:
            command = [sys.executable, "-c", PRELOADED_BY_PTH, str(self.library), str(STOCK), *options]
        else:
            command = [sys.executable, str(STOCK), *options]
        if stock:
            command += ["--contexts", "1"]
            variables = {"PATH": os.environ["PATH"]}
        elif not pth:
            variables = variables | {"LD_PRELOAD": f"{preload} {self.library}".strip()}
        running = Harvester(command, variables, given)
        try:
            yield running
        finally:
            running.close()

    def failures(self) -> list[str]:
        """Return what the library has written down, and put it aside."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines

    def close(self) -> None:
        for service in (*self.servers, self.sidecar):
            service.kill()


@contextmanager
def farm(folder: Path, servers: int = 2) -> Iterator[Farm]:
    """Run one for as long as the block lasts."""
    running = Farm(folder, servers)
    try:
        yield running
    finally:
        running.close()
