"""What this machine could do at most: how fast it computes ChaCha8 in C and moves memory.

Every value of a bucket has to be computed once, written once into its partition and read twice from it (24 bytes).
Nothing that joins whole buckets can be faster than that, so `limit_ms` is what the benchmark measures us against.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gpupool.pos.chacha import fill_keystream, plot_key

SOURCE = Path(__file__).parent.parent / "benchmarks" / "chacha8.c"
BLOCKS = 4096
VALUES = 16 * BLOCKS
BYTES_A_VALUE = 24
ROUNDS = 40
COPIED = 64 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates of one core."""

    our_keystream: float
    """Values a second (k = 32)."""
    c_keystream: float | None
    """The same in C; None without a compiler."""
    memory: float
    """Bytes a second, read and written, of a copy that misses the caches."""

    def limit_ms(self, values: int) -> float:
        """Return the least time for so many values on one core."""
        rate = max(self.our_keystream, self.c_keystream or 0.0)
        return 1000 * values * (1 / rate + BYTES_A_VALUE / self.memory)


def measured() -> Limits:
    """Measure this machine; about a second."""
    key, words = plot_key(bytes(range(32))), np.empty((16, BLOCKS), np.uint32)
    fill_keystream(key, np.uint64(0), words)
    ours = _best(partial(fill_keystream, key, np.uint64(0), words))
    source, target = np.ones(COPIED >> 3, np.uint64), np.zeros(COPIED >> 3, np.uint64)
    copy = _best(partial(np.copyto, target, source), rounds=8)
    return Limits(VALUES / ours, _c_rate(key, words), 2 * COPIED / copy)


def _c_rate(key: "np.ndarray[tuple[int, ...], np.dtype[np.uint32]]", expected: object) -> float | None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "chacha8.so"
        options = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([compiler, *options, "-o", str(library), str(SOURCE)], check=True)
        function = ctypes.CDLL(str(library)).fill_keystream
        words = np.empty((16, BLOCKS), np.uint32)
        call = partial(
            function, key.ctypes.data_as(ctypes.c_void_p), 0, BLOCKS, words.ctypes.data_as(ctypes.c_void_p)
        )
        seconds = _best(call)
    if not np.array_equal(words, np.asarray(expected)):
        raise SystemExit("the C reference computes another keystream")
    return VALUES / seconds


def _best(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return min(times)
