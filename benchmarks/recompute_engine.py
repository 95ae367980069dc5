"""How fast proofs and qualities come back, level by level, and how that compares with the official decompressor.

On one core times are CPU milliseconds of one thread; on two, wall milliseconds with two threads for one request, for
both engines. Each is the best of several real proofs, and both engines are measured in the same run, since only
ratios mean something on a machine that is busy with other work. ``limit`` is how many times the physical least
(`recompute_limits`) a proof takes. ``peak`` is what the level adds to a process's memory. ``cold`` and ``warm`` are
the wall seconds from the start of a server's process until it is ready, without and with its compiled kernels on disk.

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
from gpupool.pos.costs import cost  # noqa: E402
from gpupool.pos.decompressor import Decompressor  # noqa: E402
from gpupool.pos.parameters import LEVELS, dropped_bits  # noqa: E402
from gpupool.pos.truncation import truncate, truncate_twice  # noqa: E402
from gpupool.pos.verification import verify_proof  # noqa: E402
from gpupool.recompute.demo import KnownProof  # noqa: E402
from official_decompressor import official_decompressor  # noqa: E402
from recompute_limits import Limits, measured  # noqa: E402

PROOF_TARGET, QUALITY_TARGET, C7_TARGET = 5.0, 6.0, 7.0
MOST_MIB = 114
"""Of a thread: 120 MB."""
WARM_SECONDS = 1.0
"""CPU time in which an engine with kernels on disk imports numba, loads them and recovers two known answers."""
PROOFS = mainnet.K32[:5]
START_SECONDS = 300.0
LEAST_SECONDS = 1.0
OFFICIAL_STARTS = 5
SLOW_LEVEL = 6
"""From here on the official decompressor takes many seconds a proof, so one has to do."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Milliseconds of ours and theirs."""

    ours: float
    theirs: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many of ours fit into one of theirs."""
        return None if self.theirs is None else self.theirs / self.ours


@dataclass(frozen=True, slots=True)
class Row:
    """One level."""

    level: int
    threads: int
    proof: Pair
    quality: Pair
    limit: float | None
    """How many times the physical least a proof takes on one core; None on two."""
    peak_mib: int | None
    """Memory that the level adds to a process with one thread."""

    def misses(self) -> list[str]:
        """Return what is slower or larger than the design asks for."""
        slow = self._too_slow()
        if self.peak_mib is not None and self.peak_mib > MOST_MIB:
            slow.append(f"C{self.level} takes {self.peak_mib} MiB instead of {MOST_MIB}")
        return slow

    def _too_slow(self) -> list[str]:
        proof_target = C7_TARGET if (self.level, self.threads) == (7, 2) else PROOF_TARGET
        pairs = (("proofs", self.proof, proof_target), ("qualities", self.quality, QUALITY_TARGET))
        return [
            f"C{self.level} {name} on {self.threads}: {pair.ratio:.1f}x instead of {target:g}x"
            for name, pair, target in pairs
            if pair.ratio is not None and pair.ratio < target
        ]


@dataclass(frozen=True, slots=True)
class Start:
    """From the start of a server's process until it is ready."""

    cache: str
    listening_seconds: float
    ready_seconds: float
    memory_mib: int


def best(calls: list[Callable[[], object]], clock: Callable[[], float] = time.process_time) -> float:
    """Return the shortest time of the calls, in milliseconds, after at least one round and `LEAST_SECONDS`."""
    times: list[float] = []
    while sum(times) < LEAST_SECONDS:
        for call in calls:
            began = clock()
            call()
            times.append(clock() - began)
    return min(times) * 1000


def memory_mib(pid: int | str = "self") -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def peak_mib(level: int) -> int:
    """Return what one proof of a level adds to the memory of a process of its own."""
    code = f"import recompute_engine; recompute_engine.print_peak({level})"
    result = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), check=True, stdout=subprocess.PIPE
    )
    return int(result.stdout)


def print_peak(level: int) -> None:
    """Print for `peak_mib` how much memory a proof took beyond what a proof at level 1 had taken before it."""
    engine = Decompressor()
    for bits in (16, 18):
        our_proof(engine, PROOFS[0], bits)()
    engine.close()
    before = memory_mib()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    our_proof(engine, PROOFS[0], dropped_bits(level))()
    peak = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    print(max(0, (int(peak.split()[1]) >> 10) - before))


def our_proof(engine: Decompressor, known: KnownProof, bits: int) -> Callable[[], object]:
    """Return the call that recovers a proof."""
    return partial(engine.recover_proof, known.plot_id, bits, truncate(known.xs, bits), known.challenge)


def quality_line_points(known: KnownProof, bits: int) -> tuple[int, ...]:
    """Return the first line point and its sibling, as the official decompressor wants them from level 6 on."""
    return truncate_twice(known.xs[: 4 if bits < dropped_bits(SLOW_LEVEL) else 8], bits)


def measure(level: int, threads: int, official: bool, limits: Limits) -> Row:
    """Measure one level."""
    bits, engine = dropped_bits(level), Decompressor(threads)
    clock = clock_for(threads)

    def our_quality(known: KnownProof) -> Callable[[], object]:
        points = quality_line_points(known, bits)
        return partial(engine.recover_quality, known.plot_id, bits, points, known.challenge)

    our_proof(engine, PROOFS[0], bits)()  # compiles, or loads what was compiled
    proof_ms = best([our_proof(engine, p, bits) for p in PROOFS], clock)
    quality_ms = best([our_quality(p) for p in PROOFS], clock)
    engine.close()
    single = threads == 1
    row = Row(
        level,
        threads,
        Pair(proof_ms),
        Pair(quality_ms),
        proof_ms / limits.limit_ms(cost("proof", bits, 32).values) if single else None,
        peak_mib(level) if single else None,
    )
    return with_official(row, bits) if official else row


def with_official(row: Row, bits: int) -> Row:
    """Add the times of the official decompressor, measured in a process of its own.

    It sometimes ends its process while it starts its threads; then it is started again.
    """
    code = f"import recompute_engine; recompute_engine.print_official({row.level}, {row.threads}, {bits})"
    for _ in range(OFFICIAL_STARTS):
        result = subprocess.run(
            [sys.executable, "-c", code], env=child_environment(), stdout=subprocess.PIPE, check=False
        )
        if result.returncode == 0:
            proof_ms, quality_ms = json.loads(result.stdout.splitlines()[-1])
            proof, quality = replace(row.proof, theirs=proof_ms), replace(row.quality, theirs=quality_ms)
            return replace(row, proof=proof, quality=quality)
    raise SystemExit("the official decompressor does not run")


def print_official(level: int, threads: int, bits: int) -> None:
    """Print for `with_official` the milliseconds of a proof and of a quality."""
    proofs = PROOFS[: 1 if level >= SLOW_LEVEL else 3]
    clock = clock_for(threads)
    with official_decompressor(level, threads) as other:

        def their_proof(known: KnownProof) -> Callable[[], object]:
            return partial(other.proof, known.plot_id, level, truncate(known.xs, bits))

        def their_quality(known: KnownProof) -> Callable[[], object]:
            points = quality_line_points(known, bits)
            return partial(other.quality, known.plot_id, level, points, known.challenge)

        print(
            json.dumps(
                [
                    best([their_proof(p) for p in proofs], clock),
                    best([their_quality(p) for p in proofs], clock),
                ]
            )
        )


def clock_for(threads: int) -> Callable[[], float]:
    """Return CPU time for one thread, which a busy machine disturbs least; wall time for several."""
    return time.process_time if threads == 1 else time.perf_counter


def child_environment() -> dict[str, str]:
    """Return what a process needs that imports this module."""
    return os.environ | {"PYTHONPATH": str(ROOT / "benchmarks")}


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
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


def warm_seconds() -> float:
    """Return the CPU seconds from the start of a process until its engine has given known answers, at the second time."""
    code = (
        "import time; from gpupool.recompute.server.numba_engine import checked_engine; checked_engine();"
        "print(time.process_time())"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    runs = [
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    return min(float(run.stdout) for run in runs[1:])


def answers(http: httpx.Client, path: str) -> bool:
    """Tell whether a path answers 200."""
    try:
        return http.get(path).status_code == 200
    except httpx.TransportError:
        return False


def verify_ms() -> float:
    """Measure our verifier."""
    return best([partial(verify_proof, p.plot_id, p.k, p.xs, p.challenge) for p in mainnet.K32])


def print_table(rows: list[Row], limits: Limits, verify: float, warm: float, starts: list[Start]) -> None:
    """Print all results for people."""
    print("level threads   proof ms  official   ratio  quality ms  official   ratio  limit  peak MiB")
    for row in rows:
        cells = [f"C{row.level} {row.threads:10d}"]
        for pair in (row.proof, row.quality):
            theirs = "        -       -" if pair.ratio is None else f"{pair.theirs:9.1f}{pair.ratio:7.1f}x"
            cells.append(f"{pair.ours:9.2f} {theirs}")
        if row.limit is not None:
            cells.append(f"{row.limit:5.1f}{row.peak_mib:10d}")
        print(" ".join(cells))
    c_rate = "no C compiler" if limits.c_keystream is None else f"{limits.c_keystream / 1e9:.2f} G/s in C"
    print(
        f"ChaCha8: {limits.our_keystream / 1e9:.2f} G values/s, {c_rate}; memory {limits.memory / 1e9:.1f} GB/s"
    )
    print(f"verifying a proof: {verify:.2f} ms; a warm start of the engine: {warm:.2f} s of a core")
    for one in starts:
        print(
            f"server with {one.cache} kernel cache: listening after {one.listening_seconds:.1f} s, "
            f"ready after {one.ready_seconds:.1f} s, {one.memory_mib} MiB"
        )


def main() -> int:
    """Measure, print, and return 1 where something is slower or larger than the design asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--levels", default=",".join(map(str, LEVELS)), help="levels to measure [1,2,3,4,5,6,7]"
    )
    parser.add_argument("--threads", default="1,2", help="threads for one request [1,2]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--no-official", action="store_true", help="leave the official decompressor out")
    parser.add_argument("--no-start", action="store_true", help="leave the start of a server out")
    given = parser.parse_args()
    limits = measured()
    rows = [
        measure(int(level), int(threads), not given.no_official, limits)
        for threads in given.threads.split(",")
        for level in given.levels.split(",")
    ]
    verify, warm, starts = verify_ms(), warm_seconds(), []
    if not given.no_start:
        with tempfile.TemporaryDirectory() as home:
            starts = [start("cold", home), start("warm", home)]
    if given.json:
        result = {
            "levels": [asdict(row) for row in rows],
            "limits": asdict(limits),
            "verify_ms": verify,
            "warm_seconds": warm,
            "start": [asdict(s) for s in starts],
        }
        print(json.dumps(result, indent=2))
    else:
        print_table(rows, limits, verify, warm, starts)
    slow = [miss for row in rows for miss in row.misses()]
    if warm > WARM_SECONDS:
        slow.append(f"a warm start takes {warm:.2f} s instead of {WARM_SECONDS:g} s")
    for miss in slow:
        print(f"not as asked for: {miss}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
