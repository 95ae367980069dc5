"""Joining two large buckets (b >= 18): deal both out into partitions first, then join each in a near cache.

A hash table over a million entries misses the caches at every step. A partition covers 32,768 neighbouring groups:
its table of 16-bit heads takes 64 KiB, with one slot a group and no key to compare. Smaller partitions have smaller
tables but more rows to deal into; this size was the fastest of four for 2^20 to 2^22 values.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpupool.pos.buckets import Bucket
from gpupool.pos.compiling import Indices, LongWords, kernel, part
from gpupool.pos.matching import group_of, remainder_of, remainders_match
from gpupool.pos.parameters import EXTRA_BITS, GROUP_SIZE, K

U32 = np.uint32
U64 = np.uint64
I64 = np.int64
_SPAN_BITS = 15
_SPAN = 1 << _SPAN_BITS
_PARTITIONS = ((1 << (K + EXTRA_BITS)) // GROUP_SIZE >> _SPAN_BITS) + 1

Counts: TypeAlias = NDArray[np.int64]
Links: TypeAlias = NDArray[np.uint16]


class PartitionScratch(NamedTuple):
    """Memory for one join of buckets of 2^b values.

    A cell packs an entry: bits 0-31 its position, 32-47 its remainder, 48-63 its slot, which is its group within the
    partition plus one. Slots 0 and 32,769 are for entries of the neighbouring partitions that touch this one.
    """

    cells_a: LongWords
    """[partitions, room]"""
    cells_b: LongWords
    counts_a: Counts
    """[partitions] entries in each row of ``cells_a``."""
    counts_b: Counts
    heads: Links
    """[slots] one plus the column of the first entry of a chain; 0 for none, and all 0 between partitions."""
    links: Links


def partition_scratch(bits: int) -> PartitionScratch:
    """Return the memory to join buckets of 2^``bits`` values: room for nine standard deviations above the mean."""
    mean = (1 << bits) / (_PARTITIONS - 1)
    room = int(mean + 9 * mean**0.5) + 32
    return PartitionScratch(
        cells_a=np.empty((_PARTITIONS, room), np.uint64),
        cells_b=np.empty((_PARTITIONS, room), np.uint64),
        counts_a=np.empty(_PARTITIONS, np.int64),
        counts_b=np.empty(_PARTITIONS, np.int64),
        heads=np.empty(_SPAN + 2, np.uint16),
        links=np.empty(room + 1, np.uint16),
    )


@part
def _put(cells: LongWords, counts: Counts, partition: I64, cell: U64) -> None:
    # Free of branches: with one, the compiler would count references to both arrays at each call. A row that is
    # full overwrites its last cell, and its count tells so at the end.
    column = counts[partition]
    cells[partition, min(column, cells.shape[1] - 1)] = cell
    counts[partition] = column + 1


@kernel
def _deal(bucket: Bucket, cells: LongWords, counts: Counts, with_edges: bool) -> bool:
    """Sort a bucket into partitions, edges twice if asked; False when a row has not enough room."""
    words, top = bucket.words, bucket.top
    counts[:] = 0
    for i in range(words.size):
        word = words[i]
        group = group_of(word, top)
        entry = U64(i) | U64(U64(remainder_of(word, top, group)) << U64(32))
        partition = I64(group >> U32(_SPAN_BITS))
        slot = I64(group & U32(_SPAN - 1)) + 1
        _put(cells, counts, partition, entry | U64(U64(slot) << U64(48)))
        if with_edges:
            if slot == 1 and partition > 0:
                _put(cells, counts, I64(partition - 1), entry | U64(U64(_SPAN + 1) << U64(48)))
            elif slot == _SPAN and partition + 1 < counts.size:
                _put(cells, counts, I64(partition + 1), entry)
    fits = True
    for row in range(counts.size):
        fits = fits and counts[row] <= cells.shape[1]
    return fits


@kernel
def join_partitioned(a: Bucket, b: Bucket, scratch: PartitionScratch, matches: Indices) -> int:
    """Find all matching pairs of two buckets and return how many there are, or -1 where a partition overflowed.

    As many as fit are written to ``matches`` [room, 3]: position in ``a``, position in ``b``, 1 where ``b`` is left.
    """
    # Taken out of the tuple once: inside a loop each access would count a reference, which costs more than the work.
    cells_a, cells_b, counts_a, counts_b, heads, links = scratch
    fits_a = _deal(a, cells_a, counts_a, True)
    fits_b = _deal(b, cells_b, counts_b, False)
    if not (fits_a and fits_b):
        return -1
    found = 0
    heads[:] = 0
    for partition in range(counts_a.size):
        for i in range(counts_a[partition]):
            slot = cells_a[partition, i] >> U64(48)
            links[i + 1] = heads[slot]
            heads[slot] = i + 1
        for i in range(counts_b[partition]):
            found = _compare(cells_b[partition, i], cells_a, partition, heads, links, matches, found)
        for i in range(counts_a[partition]):
            heads[cells_a[partition, i] >> U64(48)] = 0
    return found


@part
def _compare(
    cell: U64, cells_a: LongWords, partition: int, heads: Links, links: Links, matches: Indices, found: int
) -> int:
    slot = I64(cell >> U64(48))
    remainder = U32(U64(cell >> U64(32)) & U64(0xFFFF))
    for b_left in range(2):
        entry = I64(heads[slot + 1 if b_left else slot - 1])
        while entry:
            other_cell = cells_a[partition, entry - 1]
            other = U32(U64(other_cell >> U64(32)) & U64(0xFFFF))
            if _fits(slot, remainder, other, b_left):
                if found < matches.shape[0]:
                    matches[found, 0] = I64(other_cell & U64(0xFFFFFFFF))
                    matches[found, 1] = I64(cell & U64(0xFFFFFFFF))
                    matches[found, 2] = b_left
                found += 1
            entry = I64(links[entry])
    return found


@part
def _fits(slot_b: I64, remainder_b: U32, remainder_a: U32, b_left: int) -> bool:
    """Partitions start at even groups, so a slot tells the parity of its group."""
    if b_left:
        return remainders_match(I64((slot_b - 1) & 1), remainder_b, remainder_a)
    return remainders_match(I64((slot_b - 2) & 1), remainder_a, remainder_b)
