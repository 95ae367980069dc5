"""Tables 2 to 7: joining lists of entries and computing what a matched pair becomes.

Lists here are short (two entries at level 1, some thousand at level 7 and table 2), so one way for all k and clarity
win over tricks. The two sides of a match come in either order; which one is left is found by the match itself, so
results are in proof order without a sort.
"""

from typing import NamedTuple

import numpy as np

from gpupool.pos.blake3 import hash_block
from gpupool.pos.chacha import swap_bytes
from gpupool.pos.compiling import Indices, LongWords, Words, kernel, part
from gpupool.pos.joining import Matches
from gpupool.pos.matching import mismatch
from gpupool.pos.parameters import EXTRA_BITS, GROUP_SIZE, LAST_TABLE, METADATA_WORDS, K

U32 = np.uint32
U64 = np.uint64
_GROUP = U64(GROUP_SIZE)
_WORD = U64(32)
_COLLATED_BEFORE = 4
"""Up to this table metadata is both sides' metadata in a row, which are the x; from it on it comes out of the hash."""


class Entries(NamedTuple):
    """Entries of one table."""

    y: LongWords
    """[n] values of k + 6 bits."""
    metadata: LongWords
    """[n, 4 or fewer] units of k bits; in tables 2 and 3 the values x."""
    xs: LongWords
    """[n, 2^(table - 1)] the values x each one stands on, in proof order."""


def concatenate(parts: list[Entries]) -> Entries:
    """Return all entries of several lists of one table."""
    if len(parts) == 1:
        return parts[0]
    return Entries(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def table_two(matches: Matches, k: int = K) -> Entries:
    """Return the entries of table 2 that matching pairs of x make."""
    count = len(matches.y)
    y = np.empty(count, np.uint64)
    _hash_pairs(k, matches.y, matches.xs, y)
    return Entries(y, matches.xs, matches.xs)


def next_table(table: int, a: Entries, b: Entries, k: int = K) -> Entries:
    """Return the entries of ``table`` (3..7) whose one side is in ``a`` and the other in ``b``."""
    a, b = _wide(a), _wide(b)
    rows = np.empty((64, 3), np.int32)
    count = _match_entries(a.y, b.y, rows)
    if count > len(rows):
        rows = np.empty((count, 3), np.int32)
        _match_entries(a.y, b.y, rows)
    y = np.empty(count, np.uint64)
    xs = np.empty((count, 2 * a.xs.shape[1]), np.uint64)
    collated = table < _COLLATED_BEFORE
    metadata = (
        xs if collated else np.empty((count, METADATA_WORDS[(table + 1) % (LAST_TABLE + 1)]), np.uint64)
    )
    _combine(table, k, rows[:count], a, b, y, xs, metadata)
    return Entries(y, metadata, xs)


def join_upwards(table: int, lists: list[Entries], k: int = K) -> Entries:
    """Join neighbours, table by table from ``table`` on, until one of the lists (a power of two of them) is left."""
    while len(lists) > 1:
        lists = [next_table(table, lists[i], lists[i + 1], k) for i in range(0, len(lists), 2)]
        table += 1
    return lists[0]


def _wide(entries: Entries) -> Entries:
    """A device gives numbers of 32 bits."""
    return Entries(*(np.ascontiguousarray(column, np.uint64) for column in entries))


@kernel
def _match_entries(ya: LongWords, yb: LongWords, rows: Indices) -> int:
    """Write index in a, index in b, and 1 where b is left to ``rows`` as far as there is room; return the count."""
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
                if ya[entry] // _GROUP == wanted and _fits(ya[entry], yb[j]):
                    if found < rows.shape[0]:
                        rows[found, 0] = entry
                        rows[found, 1] = j
                        rows[found, 2] = b_left
                    found += 1
                entry = links[entry]
    return found


@part
def _fits(one: U64, other: U64) -> bool:
    """Tell whether two values of neighbouring groups match."""
    left, right = min(one, other), max(one, other)
    group = left // _GROUP
    remainder = U32(left - U64(group * _GROUP))
    return bool(mismatch(U32(group & U64(1)), remainder, U32(right - U64((right // _GROUP) * _GROUP))) == 0)


@kernel
def _hash_pairs(k: int, y: LongWords, xs: LongWords, result: LongWords) -> None:
    message, state = np.empty(16, np.uint32), np.empty(16, np.uint32)
    for row in range(y.size):
        message[:] = 0
        at = _put(message, 0, y[row], k + EXTRA_BITS)
        for w in range(2):
            at = _put(message, at, xs[row, w], k)
        _hash(message, at, state)
        result[row] = _take(state, 0, k + EXTRA_BITS)


@kernel
def _combine(
    table: int,
    k: int,
    rows: Indices,
    a: Entries,
    b: Entries,
    y: LongWords,
    xs: LongWords,
    metadata: LongWords,
) -> None:
    message, state = np.empty(16, np.uint32), np.empty(16, np.uint32)
    units, half = METADATA_WORDS[table], a.xs.shape[1]
    for row in range(rows.shape[0]):
        i, j = rows[row, 0], rows[row, 1]
        left, right = (b, a) if rows[row, 2] else (a, b)
        if rows[row, 2]:
            i, j = j, i
        message[:] = 0
        at = _put(message, 0, left.y[i], k + EXTRA_BITS)
        for w in range(units):
            at = _put(message, at, left.metadata[i, w], k)
        for w in range(units):
            at = _put(message, at, right.metadata[j, w], k)
        _hash(message, at, state)
        y[row] = _take(state, 0, k + EXTRA_BITS)
        for w in range(half):
            xs[row, w] = left.xs[i, w]
            xs[row, half + w] = right.xs[j, w]
        if table >= _COLLATED_BEFORE:
            for w in range(metadata.shape[1]):
                metadata[row, w] = _take(state, k + EXTRA_BITS + w * k, k)


@part
def _put(message: Words, at: int, value: U64, width: int) -> int:
    """Write ``width`` (<= 46) bits at bit ``at`` of a message of zeros, most significant first; return their end."""
    aligned, shift, w = U64(value << U64(64 - width)), U64(at & 31), at >> 5
    message[w] |= U32(aligned >> U64(_WORD + shift))
    message[w + 1] |= U32(U64(aligned >> shift))
    message[w + 2] |= U32(U64(aligned << U64(_WORD - shift)))
    return at + width


@part
def _take(state: Words, at: int, width: int) -> U64:
    """Read ``width`` (<= 46) bits at bit ``at``."""
    shift, w = U64(at & 31), at >> 5
    value = U64(U64(state[w]) << _WORD) | U64(state[w + 1])
    value = U64(value << shift) | U64(U64(state[w + 2]) >> U64(_WORD - shift))
    return U64(value >> U64(64 - width))


@part
def _hash(message: Words, length: int, state: Words) -> None:
    """Hash ``length`` bits; message and hash are numbers, most significant word first."""
    for w in range(16):
        message[w] = swap_bytes(message[w])
    hash_block(message, U32((length + 7) // 8), state)
    for w in range(8):
        state[w] = swap_bytes(state[w])
