"""Table 1 on demand: all values x that share their upper bits, dealt out into partitions of neighbouring groups.

A chunk of keystream is computed, split into groups and remainders, and dealt out while it is in the nearest cache,
so a bucket is written once and never read again before its partitions are joined.

A *cell* is one entry: bits 0-23 its position in the bucket (the dropped bits of x), 24-37 its remainder, 38-63 its
slot, which is its group within the partition plus one. Slots 0 and 2^s + 1 are for entries of the neighbouring
partitions that touch this one. A y can be told from partition, slot and remainder.
"""

from typing import NamedTuple

import numpy as np

from gpupool.pos.chacha import BLOCK_WORDS, fill_keystream
from gpupool.pos.compiling import LongWords, Words, kernel, part
from gpupool.pos.layout import CHUNK, Layout
from gpupool.pos.parameters import EXTRA_BITS, GROUP_SIZE, K

U32 = np.uint32
U64 = np.uint64
_RECIPROCAL = U64(2328086553)
"""floor(2^45 / 15113). Multiplying by it and shifting gives word * 64 div 15113, at most one too small."""
_RECIPROCAL_SHIFT = U64(39)
_GROUP = U32(GROUP_SIZE)
REST_SHIFT = U64(24)
SLOT_SHIFT = U64(38)
_BLOCK_BITS = 32 * BLOCK_WORDS


class Bucket(NamedTuple):
    """Where the entries of one bucket are."""

    cells: LongWords
    """Flat; row p of a pass starts at p times the layout's room."""
    ends: Words
    """[rows + 1] where each row ends; the last one is not used."""


class Chunk(NamedTuple):
    """Values that were computed but not dealt out yet; a column of ``BLOCK_WORDS`` neighbours where k = 32."""

    keystream: Words
    offsets: Words
    """[CHUNK] group of each value, counted from the first one of the pass; the first one after it where outside."""
    rests: Words
    """[CHUNK] remainders."""


def new_chunk(k: int) -> Chunk:
    """Return memory for one chunk of a plot of size ``k``."""
    blocks = CHUNK * k // _BLOCK_BITS + 2
    return Chunk(np.empty(BLOCK_WORDS * blocks, np.uint32), *(np.empty(CHUNK, np.uint32) for _ in range(2)))


def new_bucket(laid: Layout) -> Bucket:
    """Return memory for the entries of one bucket."""
    return Bucket(np.empty(laid.cells, np.uint64), np.empty(laid.rows + 1, np.uint32))


def empty(bucket: Bucket, room: int) -> None:
    """Forget all entries of ``bucket``, whose rows have ``room`` cells."""
    bucket.ends[:] = np.arange(bucket.ends.size, dtype=np.uint32) * np.uint32(room)


@kernel
def deal(
    key: Words,
    k: int,
    first: U64,
    start: int,
    stop: int,
    span_bits: int,
    first_row: int,
    room: int,
    with_edges: bool,
    bucket: Bucket,
    chunk: Chunk,
) -> bool:
    """Add the values x = ``first`` + ``start`` .. ``first`` + ``stop`` - 1 to a bucket; False where a row is full.

    ``start`` and ``stop`` are multiples of `CHUNK` or the bucket's ends; ``first_row`` is the partition that row 0 of
    this pass stands for (-1 in the first). With edges, entries that touch a
    neighbouring partition are added to that one too.
    """
    # Taken out of the tuples once: inside a loop each access would count a reference.
    cells, ends = bucket
    keystream, offsets, rests = chunk
    unused = ends.size - 1
    first_group, outside = U64(first_row << span_bits), U64(unused << span_bits)
    for at in range(start, stop, CHUNK):
        count = min(CHUNK, stop - at)
        x = U64(first + U64(at))
        if k == K and count >= BLOCK_WORDS:
            lines, blocks = BLOCK_WORDS, count // BLOCK_WORDS
            words = keystream[: BLOCK_WORDS * blocks].reshape(BLOCK_WORDS, blocks)
            fill_keystream(key, U64(x >> U64(4)), words)
            _split_aligned(
                keystream,
                U32(x >> U64(K - EXTRA_BITS)),
                count,
                U32(first_group),
                U32(outside),
                offsets,
                rests,
            )
        else:
            lines = 1
            _split_any(key, k, x, count, first_group, outside, keystream, offsets, rests)
        _deal_chunk(at, lines, count, span_bits, offsets, rests, cells, ends)
        ends[unused] = unused * room
        if with_edges and _edges(offsets, count, span_bits):
            _deal_edges(at, lines, count, span_bits, offsets, rests, cells, ends)
            ends[unused] = unused * room
        if not _rows_fit(ends, room):
            return False
    return True


@part
def group_of(word: U32, top: U32) -> tuple[U32, U32]:
    """Return group and remainder of y = ``word`` * 64 + ``top`` in 32-bit arithmetic (k = 32).

    All but the low 32 bits of y cancel out in the remainder.
    """
    group = U32(U64(U64(word) * _RECIPROCAL) >> _RECIPROCAL_SHIFT)
    rest = U32(U32(U32(word << U32(EXTRA_BITS)) | top) - U32(group * _GROUP))
    over = U32(rest >= _GROUP)
    return U32(group + over), U32(rest - U32(over * _GROUP))


@part
def _split_aligned(
    words: Words,
    top: U32,
    count: int,
    first_group: U32,
    outside: U32,
    offsets: Words,
    rests: Words,
) -> None:
    for i in range(U64(count)):
        group, rests[i] = group_of(words[i], top)
        offsets[i] = min(U32(group - first_group), outside)


@kernel
def _split_any(
    key: Words,
    k: int,
    first: U64,
    count: int,
    first_group: U64,
    outside: U64,
    keystream: Words,
    offsets: Words,
    rests: Words,
) -> None:
    """Do the same for any k: bits x*k .. x*k + k of the keystream, then the upper six bits of x."""
    width = U64(k)
    begin = U64(first * width)
    block = U64(begin // U64(_BLOCK_BITS))
    blocks = (int(begin - U64(block * U64(_BLOCK_BITS))) + count * k + _BLOCK_BITS - 1) // _BLOCK_BITS + 1
    words = keystream[: BLOCK_WORDS * blocks].reshape(BLOCK_WORDS, blocks)
    fill_keystream(key, block, words)
    for i in range(count):
        x = U64(first + U64(i))
        at = U64(U64(x * width) - U64(block * U64(_BLOCK_BITS)))
        shift, w = at & U64(31), at >> U64(5)
        bits = U64(0)
        for _ in range(2):
            bits = U64(bits << U64(32)) | U64(words[w & U64(15), w >> U64(4)])
            w = U64(w + U64(1))
        bits = U64(bits << shift) | U64(U64(words[w & U64(15), w >> U64(4)]) >> U64(U64(32) - shift))
        value = U64(bits >> U64(U64(64) - width))
        y = U64(value << U64(EXTRA_BITS)) | U64(x >> U64(width - U64(EXTRA_BITS)))
        group = U64(y // U64(GROUP_SIZE))
        rests[i] = U32(y - U64(group * U64(GROUP_SIZE)))
        offsets[i] = U32(min(U64(group - first_group), outside))


@part
def _deal_chunk(
    start: int,
    lines: int,
    count: int,
    span_bits: int,
    offsets: Words,
    rests: Words,
    cells: LongWords,
    ends: Words,
) -> None:
    """Deal out a chunk whose values lie in ``lines`` lines, neighbours in a column."""
    shift, mask, step = U32(span_bits), U32((1 << span_bits) - 1), U64(lines)
    columns = U64(U64(count) // step)
    for line in range(step):
        position, begin = U64(U64(start) + line), U64(line * columns)
        for column in range(columns):
            i = U64(begin + column)
            row = offsets[i] >> shift
            slot = U32(U32(offsets[i] & mask) + U32(1))
            cell = U64(U64(slot) << SLOT_SHIFT) | U64(U64(rests[i]) << REST_SHIFT)
            end = ends[row]
            cells[end] = cell | U64(position + U64(column * step))
            ends[row] = U32(end + U32(1))


@part
def _edges(offsets: Words, count: int, span_bits: int) -> bool:
    """Tell whether any value is in the first or last group of a partition."""
    mask, near = U32((1 << span_bits) - 1), U32(0)
    for i in range(U64(count)):
        near = U32(near + U32(U32(U32(offsets[i] + U32(1)) & mask) <= U32(1)))
    return bool(near > 0)


@kernel
def _deal_edges(
    start: int,
    lines: int,
    count: int,
    span_bits: int,
    offsets: Words,
    rests: Words,
    cells: LongWords,
    ends: Words,
) -> None:
    """Add the first and last slot of each partition to its neighbours in this pass, too."""
    columns, mask = count // lines, (1 << span_bits) - 1
    unused = ends.size - 1
    for i in range(count):
        slot, row = int(offsets[i]) & mask, int(offsets[i]) >> span_bits
        cell = U64(U64(rests[i]) << REST_SHIFT) | U64(start + i % columns * lines + i // columns)
        if slot == 0 and 0 < row < unused:
            cells[ends[row - 1]] = cell | U64(U64(mask + 2) << SLOT_SHIFT)
            ends[row - 1] += U32(1)
        elif slot == mask and row + 1 < unused:
            cells[ends[row + 1]] = cell
            ends[row + 1] += U32(1)


@part
def _rows_fit(ends: Words, room: int) -> bool:
    """Tell whether no row has run into the next; checked after each chunk, before it could leave the array."""
    over = 0
    for row in range(ends.size - 1):
        over += int(ends[row] > U32((row + 1) * room))
    return over == 0
