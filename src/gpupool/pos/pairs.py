"""From the line point of a pair to the entries of table 2 that stand on it: expanding and joining two buckets.

Work is done in slices of a few milliseconds with a checkpoint between them, so that at any level a request can be
stopped soon after nobody wants its answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from gpupool.core.errors import GpupoolError
from gpupool.pos.compiling import Words
from gpupool.pos.dealing import Bucket, deal, empty, new_bucket, new_chunk
from gpupool.pos.filtering import LARGEST_BITS, SMALLEST_BITS, filter_scratch, join_filtered
from gpupool.pos.joining import Matches, join_rows, join_scratch, new_matches
from gpupool.pos.layout import layout
from gpupool.pos.parameters import K, check_dropped_bits
from gpupool.pos.tables import Entries, concatenate, table_two

Checkpoint = Callable[[], None]
"""Called between units of work (at most a few milliseconds each); stops the work by raising."""

_SLICE = 1 << 20
"""Values that are dealt out or joined between two checkpoints: about 3 ms."""


def go_on() -> None:
    """Be a checkpoint that stops nothing."""


class Workspace(ABC):
    """Memory to join two buckets of one size. Not for two threads at once."""

    def __init__(self, bits: int, k: int) -> None:
        self.bits, self.k = bits, k
        self.matches = new_matches(64 + (4 << max(0, 2 * bits - k + 1)))

    @abstractmethod
    def table_two(self, key: Words, upper_a: int, upper_b: int, checkpoint: Checkpoint = go_on) -> Entries:
        """Return every table 2 entry with one x in bucket ``upper_a`` and the other in ``upper_b``."""

    def _firsts(self, upper_a: int, upper_b: int) -> tuple[np.uint64, np.uint64]:
        return np.uint64(upper_a << self.bits), np.uint64(upper_b << self.bits)

    def _entries(self, found: int) -> Entries:
        y, xs = self.matches
        return table_two(Matches(y[:found], xs[:found].copy()), self.k)


class FilterWorkspace(Workspace):
    """For k = 32 and few dropped bits; 3 MiB at 16."""

    def __init__(self, bits: int) -> None:
        super().__init__(bits, K)
        self._scratch = filter_scratch(bits)

    def table_two(self, key: Words, upper_a: int, upper_b: int, checkpoint: Checkpoint = go_on) -> Entries:
        """See `Workspace.table_two`."""
        checkpoint()
        while True:
            found = join_filtered(key, *self._firsts(upper_a, upper_b), self._scratch, self.matches)
            if found <= len(self.matches.y):
                return self._entries(found)
            self.matches = new_matches(2 * found)


class PartitionWorkspace(Workspace):
    """For any k and any number of dropped bits; 20 MiB at 20, 80 MiB at 22 and above."""

    def __init__(self, bits: int, k: int = K) -> None:
        super().__init__(bits, k)
        self.layout = layout(k, bits)
        self._chunk = new_chunk(k)
        self._sides = new_bucket(self.layout), new_bucket(self.layout)
        self._scratch = join_scratch(self.layout)

    def table_two(self, key: Words, upper_a: int, upper_b: int, checkpoint: Checkpoint = go_on) -> Entries:
        """See `Workspace.table_two`."""
        firsts = self._firsts(upper_a, upper_b)
        inner = self.layout.rows - 2
        parts = []
        for number in range(self.layout.passes):
            first_row = number * inner - 1
            for side, first in zip(self._sides, firsts, strict=True):
                self._deal(key, first, first_row, side, checkpoint)
            parts.append(self._join(firsts, first_row, checkpoint))
        return concatenate(parts)

    def _deal(
        self, key: Words, first: np.uint64, first_row: int, side: Bucket, checkpoint: Checkpoint
    ) -> None:
        laid, size = self.layout, 1 << self.bits
        empty(side, laid.room)
        with_edges = side is self._sides[0]
        for start in range(0, size, _SLICE):
            checkpoint()
            stop = min(size, start + _SLICE)
            if not deal(
                key,
                laid.k,
                first,
                start,
                stop,
                laid.span_bits,
                first_row,
                laid.room,
                with_edges,
                side,
                self._chunk,
            ):
                raise GpupoolError("The values of a bucket are spread too unevenly to be joined.")

    def _join(self, firsts: tuple[np.uint64, np.uint64], first_row: int, checkpoint: Checkpoint) -> Entries:
        laid = self.layout
        rows = max(1, _SLICE // laid.room)
        while True:
            found = 0
            for start in range(1, laid.rows - 1, rows):
                checkpoint()
                stop = min(laid.rows - 1, start + rows)
                found = join_rows(
                    *self._sides, *firsts, laid.span_bits, laid.room, first_row, start, stop,
                    self._scratch, self.matches, found,
                )  # fmt: skip
            if found <= len(self.matches.y):
                return self._entries(found)
            self.matches = new_matches(2 * found)


def new_workspace(bits: int, k: int = K) -> Workspace:
    """Return memory for the faster way to join buckets of 2^``bits`` values; raises UnsupportedError."""
    check_dropped_bits(k, bits)
    if k == K and SMALLEST_BITS <= bits <= LARGEST_BITS:
        return FilterWorkspace(bits)
    return PartitionWorkspace(bits, k)
