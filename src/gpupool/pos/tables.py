"""Tables 2 to 7: joining short lists of entries and computing what a matched pair becomes.

Lists here are short (two entries at level 1, a few hundred at level 5 and table 2), so clarity wins over cache
tricks. The two sides of a match come in either order; which one is left is found by the match itself, so results
are in proof order without a sort.
"""

from typing import NamedTuple

import numpy as np

from gpupool.pos.blake3 import hash_block
from gpupool.pos.chacha import swap_bytes
from gpupool.pos.compiling import Indices, LongWords, Words, kernel, part
from gpupool.pos.matching import remainders_match
from gpupool.pos.parameters import EXTRA_BITS, GROUP_SIZE, LAST_TABLE, METADATA_WORDS

U32 = np.uint32
U64 = np.uint64
_GROUP = U64(GROUP_SIZE)
_LOW_SHIFT = U32(32 - EXTRA_BITS)
_LOW_MASK = U64((1 << EXTRA_BITS) - 1)
_EXTRA = U32(EXTRA_BITS)
_COLLATED_BEFORE = 4
"""Up to this table metadata is both sides' metadata in a row; from it on it comes out of the hash."""


class Entries(NamedTuple):
    """Entries of one table."""

    y: LongWords
    """[n] values of 38 bits."""
    metadata: Words
    """[n, 4] words, the first ones in use."""
    xs: Words
    """[n, 2^(table - 1)] the values x each one stands on, in proof order."""


def empty_entries(count: int, width: int) -> Entries:
    """Return room for ``count`` entries that stand on ``width`` values x."""
    return Entries(
        np.empty(count, np.uint64), np.zeros((count, 4), np.uint32), np.empty((count, width), np.uint32)
    )


def concatenate(parts: list[Entries]) -> Entries:
    """Return all entries of several lists of one table."""
    if len(parts) == 1:
        return parts[0]
    return Entries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def next_table(table: int, a: Entries, b: Entries) -> Entries:
    """Return the entries of ``table`` (3..7) whose one side is in ``a`` and the other in ``b``."""
    matches = np.empty((64, 3), np.int32)
    count = _match_entries(a.y, b.y, matches)
    if count > len(matches):
        matches = np.empty((count, 3), np.int32)
        _match_entries(a.y, b.y, matches)
    return combined(table, matches[:count], a, b)


def combined(table: int, matches: Indices, a: Entries, b: Entries) -> Entries:
    """Return the entries of ``table`` (2..7) that the rows of ``matches`` (index in a, in b, 1 if b is left) make."""
    result = empty_entries(len(matches), 2 * a.xs.shape[1])
    _combine(table, matches, a, b, result)
    return result


@kernel
def _match_entries(ya: LongWords, yb: LongWords, matches: Indices) -> int:
    size = 16
    while size < ya.size:
        size *= 2
    mask = U64(size - 1)
    heads = np.empty(size, np.int32)
    heads[:] = -1
    links = np.empty(ya.size, np.int32)
    for i in range(ya.size):
        slot = (ya[i] // _GROUP) & mask
        links[i] = heads[slot]
        heads[slot] = i
    found = 0
    for j in range(yb.size):
        group = yb[j] // _GROUP
        for b_left in range(2):
            wanted = U64(group + U64(1)) if b_left else U64(group - U64(1))
            entry = heads[wanted & mask]
            while entry >= 0:
                if ya[entry] // _GROUP == wanted and _fits(ya[entry], yb[j], wanted, group, b_left):
                    if found < matches.shape[0]:
                        matches[found, 0] = entry
                        matches[found, 1] = j
                        matches[found, 2] = b_left
                    found += 1
                entry = links[entry]
    return found


@part
def _fits(ya: U64, yb: U64, group_a: U64, group_b: U64, b_left: int) -> bool:
    remainder_a, remainder_b = U32(ya - group_a * _GROUP), U32(yb - group_b * _GROUP)
    if b_left:
        return remainders_match(np.int64(group_b & U64(1)), remainder_b, remainder_a)
    return remainders_match(np.int64(group_a & U64(1)), remainder_a, remainder_b)


@kernel
def _combine(table: int, matches: Indices, a: Entries, b: Entries, result: Entries) -> None:
    ya, metadata_a, xs_a = a
    yb, metadata_b, xs_b = b
    y, metadata, xs = result
    message, state = np.empty(16, np.uint32), np.empty(16, np.uint32)
    words, width = METADATA_WORDS[table], xs_a.shape[1]
    length = U32((32 + EXTRA_BITS + 64 * words + 7) // 8)
    for row in range(matches.shape[0]):
        i, j = matches[row, 0], matches[row, 1]
        if matches[row, 2]:
            _pack(message, words, yb[j], metadata_b, j, metadata_a, i)
            _join_rows(xs, row, xs_b, j, xs_a, i, width)
        else:
            _pack(message, words, ya[i], metadata_a, i, metadata_b, j)
            _join_rows(xs, row, xs_a, i, xs_b, j, width)
        hash_block(message, length, state)
        low = swap_bytes(state[1])
        y[row] = U64(U64(swap_bytes(state[0])) << U64(EXTRA_BITS)) | U64(low >> _LOW_SHIFT)
        if table < _COLLATED_BEFORE:
            if matches[row, 2]:
                _join_rows(metadata, row, metadata_b, j, metadata_a, i, words)
            else:
                _join_rows(metadata, row, metadata_a, i, metadata_b, j, words)
        elif table < LAST_TABLE:
            for w in range(METADATA_WORDS[table + 1]):
                high = U32(swap_bytes(state[1 + w]) << _EXTRA)
                metadata[row, w] = U32(high | U32(swap_bytes(state[2 + w]) >> _LOW_SHIFT))


@part
def _pack(message: Words, words: int, y: U64, left: Words, i: int, right: Words, j: int) -> None:
    """Write y (38 bits) and the metadata of both sides as one string of bits, padded with zeros to the block's end."""
    message[0] = swap_bytes(U32(y >> U64(EXTRA_BITS)))
    carry = U32(U32(y & _LOW_MASK) << _LOW_SHIFT)
    for w in range(2 * words):
        word = left[i, w] if w < words else right[j, w - words]
        message[1 + w] = swap_bytes(U32(carry | U32(word >> _EXTRA)))
        carry = U32(word << _LOW_SHIFT)
    message[1 + 2 * words] = swap_bytes(carry)
    for w in range(2 + 2 * words, 16):
        message[w] = U32(0)


@part
def _join_rows(target: Words, row: int, left: Words, i: int, right: Words, j: int, width: int) -> None:
    for w in range(width):
        target[row, w] = left[i, w]
        target[row, width + w] = right[j, w]
