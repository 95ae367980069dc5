"""How fast proofs and qualities come back, level by level, and how that compares with the official decompressor.

Times are CPU milliseconds on one thread, the best of several real proofs, both engines in the same run; on a busy
machine that disturbs them least. The design asks for 5 times the official speed. ``cold`` and ``warm`` are the wall
seconds from the start of a server's process until it is ready, without and with its compiled kernels on disk.

Run: `.venv/bin/python benchmarks/recompute_engine.py [--levels 1,3] [--json] [--no-official] [--no-start]`.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".numba-cache"))

import httpx  # noqa: E402 - the paths above come first

import mainnet  # noqa: E402
from gpupool.pos.decompressor import Decompressor  # noqa: E402
from gpupool.pos.parameters import LEVELS, dropped_bits  # noqa: E402
from gpupool.pos.truncation import truncate, truncate_twice  # noqa: E402
from gpupool.pos.verification import verify_proof  # noqa: E402
from gpupool.recompute.demo import KnownProof  # noqa: E402
from official_decompressor import official_decompressor  # noqa: E402

TARGET = 5.0
PROOFS = mainnet.K32[:5]
OFFICIAL_PROOFS = PROOFS[:3]
START_SECONDS = 300.0
LEAST_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Row:
    """One level; times in CPU milliseconds, memory in MiB."""

    level: int
    proof_ms: float
    quality_ms: float
    official_proof_ms: float | None
    official_quality_ms: float | None
    memory_mib: int

    @property
    def ratio(self) -> float | None:
        """How many proofs we recover in the time of one official one."""
        return None if self.official_proof_ms is None else self.official_proof_ms / self.proof_ms


@dataclass(frozen=True, slots=True)
class Start:
    """From the start of a server's process until it is ready."""

    cache: str
    listening_seconds: float
    ready_seconds: float
    memory_mib: int


def best(calls: list[Callable[[], object]]) -> float:
    """Return the shortest CPU time of the calls, in milliseconds, after at least one round and `LEAST_SECONDS`."""
    times: list[float] = []
    while sum(times) < LEAST_SECONDS:
        for call in calls:
            began = time.process_time()
            call()
            times.append(time.process_time() - began)
    return min(times) * 1000


def memory_mib(pid: int | str = "self") -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def measure(level: int, official: bool) -> Row:
    """Measure one level."""
    bits, engine = dropped_bits(level), Decompressor()

    def proof(known: KnownProof) -> Callable[[], object]:
        return partial(engine.recover_proof, known.plot_id, bits, truncate(known.xs, bits), known.challenge)

    def quality(known: KnownProof) -> Callable[[], object]:
        line_points = truncate_twice(known.xs[:4], bits)
        return partial(engine.recover_quality, known.plot_id, bits, line_points, known.challenge)

    proof(PROOFS[0])()  # compiles, or loads what was compiled
    row = Row(
        level, best([proof(p) for p in PROOFS]), best([quality(p) for p in PROOFS]), None, None, memory_mib()
    )
    if not official:
        return row
    with official_decompressor(level) as other:

        def their_proof(known: KnownProof) -> Callable[[], object]:
            return partial(other.proof, known.plot_id, level, truncate(known.xs, bits))

        def their_quality(known: KnownProof) -> Callable[[], object]:
            line_points = truncate_twice(known.xs[:4], bits)
            return partial(other.quality, known.plot_id, level, line_points, known.challenge)

        proof_ms = best([their_proof(p) for p in OFFICIAL_PROOFS])
        quality_ms = best([their_quality(p) for p in OFFICIAL_PROOFS])
    return replace(row, official_proof_ms=proof_ms, official_quality_ms=quality_ms)


@contextmanager
def server(home: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a server with its state in ``home``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("GPUPOOL_", "NUMBA_"))
    }
    environment |= {"GPUPOOL_HOME": home, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "gpupool", "recompute", "serve", "--port", str(port)]
    child = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield child, f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait()


def start(cache: str, home: str) -> Start:
    """Start a server and wait until it is ready."""
    began = time.perf_counter()
    with server(home) as (child, url), httpx.Client(base_url=url, trust_env=False) as http:
        seconds = []
        for path in ("/healthz", "/readyz"):
            while not answers(http, path):
                if child.poll() is not None or time.perf_counter() - began > START_SECONDS:
                    raise SystemExit("the server does not come up")
                time.sleep(0.01)
            seconds.append(time.perf_counter() - began)
        return Start(cache, seconds[0], seconds[1], memory_mib(child.pid))


def answers(http: httpx.Client, path: str) -> bool:
    """Tell whether a path answers 200."""
    try:
        return http.get(path).status_code == 200
    except httpx.TransportError:
        return False


def verify_ms() -> float:
    """Measure our verifier."""
    return best([partial(verify_proof, p.plot_id, p.k, p.xs, p.challenge) for p in mainnet.K32])


def print_table(rows: list[Row], verify: float, starts: list[Start]) -> None:
    """Print all results for people."""
    print("level  proof ms  official    ratio  quality ms  official    ratio  RSS MiB")
    for row in rows:
        cells = [f"C{row.level}    {row.proof_ms:9.1f}", f"{row.quality_ms:10.2f}"]
        for index, (theirs, own) in enumerate(
            ((row.official_proof_ms, row.proof_ms), (row.official_quality_ms, row.quality_ms))
        ):
            cells[index] += "         -        -" if theirs is None else f"{theirs:10.1f}{theirs / own:8.1f}x"
        print("  ".join([*cells, f"{row.memory_mib:7d}"]))
    print(f"verifying a proof: {verify:.2f} ms")
    for one in starts:
        print(
            f"server with {one.cache} kernel cache: listening after {one.listening_seconds:.1f} s, "
            f"ready after {one.ready_seconds:.1f} s, {one.memory_mib} MiB"
        )


def main() -> int:
    """Measure, print, and return 1 where a level is slower than the design asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", default=",".join(map(str, LEVELS)), help="levels to measure [1,2,3,4,5]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--no-official", action="store_true", help="leave the official decompressor out")
    parser.add_argument("--no-start", action="store_true", help="leave the start of a server out")
    given = parser.parse_args()
    rows = [measure(int(level), not given.no_official) for level in given.levels.split(",")]
    verify, starts = verify_ms(), []
    if not given.no_start:
        with tempfile.TemporaryDirectory() as home:
            starts = [start("cold", home), start("warm", home)]
    if given.json:
        result = {
            "levels": [asdict(row) for row in rows],
            "verify_ms": verify,
            "start": [asdict(s) for s in starts],
        }
        print(json.dumps(result, indent=2))
    else:
        print_table(rows, verify, starts)
    slow = [row.level for row in rows if row.ratio is not None and row.ratio < TARGET]
    if slow:
        print(f"slower than {TARGET:g} times the official decompressor at: {slow}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
