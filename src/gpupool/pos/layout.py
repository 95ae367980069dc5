"""How two buckets are laid out in memory, so that no step leaves the near caches and memory stays bounded.

All groups that a y can have are cut into *partitions* of 2^s neighbouring groups, 2,000 to 8,000 entries of a
bucket each. Partitions are worked on in *passes*: in each, both buckets are computed anew and only the entries of that pass
are kept. Computing a value costs a tenth of joining it, so passes are a cheap way to bound memory: from 23 dropped
bits on, each bit more doubles the passes instead of the memory.
"""

from dataclasses import dataclass
from typing import Final

from gpupool.pos.parameters import EXTRA_BITS, GROUP_SIZE, check_dropped_bits

CHUNK: Final = 4096
"""Values that are computed before they are dealt out."""
_SMALL_MEAN: Final = 2048
_LARGE_MEAN: Final = 8192
_LARGE_FROM_BITS: Final = 20
"""Entries of a bucket in a partition, on average, at most: small partitions join faster, but many are slow to deal to.

Positions within a partition take 16 bits.
"""
_MOST_PASS: Final = 1 << 22
"""Values of one bucket that are held at once."""
_MOST_SPAN_BITS: Final = 25
"""A slot has 26 bits in a cell."""
_MOST_GROUPS: Final = 1 << 31
"""Groups of one pass are counted with 32 bits."""
_CELL_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbers of one (k, b)."""

    k: int
    bits: int
    span_bits: int
    """A partition covers 2^span_bits groups, 1 or more, so it starts at an even one."""
    partitions: int
    passes: int
    rows: int
    """Partitions that are held in one pass: those to be joined, and one before and after them for its edges."""
    room: int
    """Cells in the row of a partition."""

    @property
    def cells(self) -> int:
        """Cells of one bucket: its rows, and a chunk for what is not of this pass or does not fit."""
        return self.rows * self.room + CHUNK

    @property
    def cell_bytes(self) -> int:
        """Bytes of the cells of both buckets, nearly all memory of a request."""
        return 2 * _CELL_BYTES * self.cells


def layout(k: int, bits: int) -> Layout:
    """Return how buckets of 2^``bits`` values of a plot of size ``k`` are laid out; raises UnsupportedError."""
    check_dropped_bits(k, bits)
    groups = (1 << (k + EXTRA_BITS)) // GROUP_SIZE + 1
    size = 1 << bits
    mean = _LARGE_MEAN if bits >= _LARGE_FROM_BITS else _SMALL_MEAN
    span_bits = (groups * mean // size).bit_length() - 1
    span_bits = max(1, min(span_bits, groups.bit_length(), _MOST_SPAN_BITS))
    partitions = (groups >> span_bits) + 1
    passes = max(-(-size // _MOST_PASS), -(-groups // _MOST_GROUPS))
    # Entries at either end of a partition are held by its neighbour, too.
    held = size * ((1 << span_bits) + 2) / groups
    return Layout(
        k=k,
        bits=bits,
        span_bits=span_bits,
        partitions=partitions,
        passes=passes,
        rows=-(-partitions // passes) + 2,
        room=_spread(int(min(held, size) + 8 * held**0.5) + 32),
    )


def _spread(cells: int) -> int:
    """Return a little more than ``cells``, so that the ends of neighbouring rows fall into different sets of the cache."""
    line = 64 // _CELL_BYTES
    return (-(-cells // line) | 1) * line
