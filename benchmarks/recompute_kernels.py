"""How far each kernel of the recompute engine is from what this processor and its memory could do at most.

CPU nanoseconds a value on one core, the best of several rounds, beside the physical least of the same step (measured in
the same run, see `recompute_limits`): the keystream in C for what is computed, 16 bytes moved for a cell that is written
(its line is read before) and 16 for two that are read. ``times`` says how many times the least a step takes. Entries of
table 2 and above are too few to matter; what one takes is told.

Run: `.venv/bin/python benchmarks/recompute_kernels.py [--json]`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".numba-cache"))

import numpy as np  # noqa: E402 - the paths above come first

from gpupool.pos.chacha import plot_key  # noqa: E402
from gpupool.pos.dealing import deal, empty, new_bucket, new_chunk  # noqa: E402
from gpupool.pos.filtering import LARGEST_BITS, filter_scratch, join_filtered  # noqa: E402
from gpupool.pos.joining import Matches, join_rows, join_scratch, new_matches  # noqa: E402
from gpupool.pos.layout import layout  # noqa: E402
from gpupool.pos.parameters import LEVELS, K, dropped_bits  # noqa: E402
from gpupool.pos.tables import table_two  # noqa: E402
from recompute_limits import Limits, measured  # noqa: E402

KEY = plot_key(bytes(range(32)))
FIRSTS = np.uint64(5 << 26), np.uint64(9 << 26)
CELL_BYTES = 16
HASHES = 10_000
ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Kernel:
    """One step at one level; nanoseconds a value."""

    name: str
    level: int | None
    ours: float
    least: float | None

    @property
    def times(self) -> float | None:
        """How many times the physical least it takes."""
        return None if self.least is None else self.ours / self.least


def best(call: Callable[[], object], units: int) -> float:
    """Return the CPU nanoseconds of one unit, in the fastest of some rounds."""
    times = []
    for _ in range(ROUNDS + 1):  # the first one compiles
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times[1:]) * 1e9 / units


def small_buckets(level: int, keystream: float) -> Iterator[Kernel]:
    """Measure the join with bitmaps, which never leaves the near caches."""
    bits = dropped_bits(level)
    scratch, matches = filter_scratch(bits), new_matches(64)
    call = partial(join_filtered, KEY, *FIRSTS, scratch, matches)
    yield Kernel("computing and joining through bitmaps", level, best(call, 2 << bits), keystream)


def large_buckets(level: int, keystream: float, moved: float) -> Iterator[Kernel]:
    """Measure dealing and joining in partitions."""
    bits = dropped_bits(level)
    laid, chunk = layout(K, bits), new_chunk(K)
    sides, scratch, matches = (new_bucket(laid), new_bucket(laid)), join_scratch(laid), new_matches(1 << 15)

    def deal_out() -> None:
        for number, (side, first) in enumerate(zip(sides, FIRSTS, strict=True)):
            empty(side, laid.room)
            if not deal(KEY, K, first, 0, 1 << bits, laid.span_bits, -1, laid.room, number == 0, side, chunk):
                raise SystemExit("a row is full")

    def join() -> None:
        join_rows(*(*sides, *FIRSTS, laid.span_bits, laid.room, -1, 1, laid.rows - 1, scratch, matches, 0))

    yield Kernel("computing and dealing out", level, best(deal_out, 2 << bits), keystream + moved)
    yield Kernel("joining partitions", level, best(join, 2 << bits), moved)


def hashes() -> Kernel:
    """Measure what a match of table 2 takes: packing, BLAKE3 of one block, unpacking."""
    values = np.random.default_rng(1).integers(1 << 32, size=(HASHES, 2), dtype=np.uint64)
    matches = Matches(values[:, 0] << np.uint64(6), values)
    return Kernel("hashing a match", None, best(partial(table_two, matches, K), HASHES), None)


def kernels(limits: Limits) -> Iterator[Kernel]:
    """Measure all of them."""
    keystream = 1e9 / max(limits.our_keystream, limits.c_keystream or 0.0)
    moved = 1e9 * CELL_BYTES / limits.memory
    yield Kernel("ChaCha8", None, 1e9 / limits.our_keystream, 1e9 / (limits.c_keystream or np.nan))
    for level in LEVELS:
        if dropped_bits(level) <= LARGEST_BITS:
            yield from small_buckets(level, keystream)
        else:
            yield from large_buckets(level, keystream, moved)
    yield hashes()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    limits = measured()
    found = list(kernels(limits))
    if parser.parse_args().json:
        print(json.dumps({"limits": asdict(limits), "kernels": [asdict(one) for one in found]}, indent=2))
        return
    print(f"{'kernel':40s} level     ns  least  times")
    for one in found:
        level = "-" if one.level is None else f"C{one.level}"
        least = "     -      -" if one.least is None else f"{one.least:6.2f} {one.times:6.1f}"
        print(f"{one.name:40s} {level:>5s} {one.ours:6.2f} {least}")


if __name__ == "__main__":
    main()
