"""Joining two small buckets (k = 32, b = 16 and below) without partitions: throw away what has no neighbour first.

A bitmap over the groups fits the second-level cache. With 2^(b+5) bits it is one thirty-second full, so each of the
two passes keeps about one entry in sixteen, and only those few meet in a hash table. Nothing is moved, which is worth
a fifth of the time where buckets are small; a larger bitmap would leave the cache.
"""

from typing import NamedTuple

import numpy as np

from gpupool.pos.chacha import BLOCK_WORDS, fill_keystream
from gpupool.pos.compiling import Indices, LongWords, Words, kernel, part
from gpupool.pos.dealing import group_of
from gpupool.pos.joining import Matches
from gpupool.pos.matching import mismatch
from gpupool.pos.parameters import EXTRA_BITS, GROUP_SIZE, K

U32 = np.uint32
U64 = np.uint64
_ONE = U64(1)
_WORD_SHIFT = U64(6)
_BIT_MASK = U64(63)
LARGEST_BITS = 16
"""Dropped bits up to which this is the faster way."""
SMALLEST_BITS = 6


class FilterScratch(NamedTuple):
    """Memory for one join of buckets of 2^b values.

    Line w, column j of ``words`` and ``groups`` (flat [16 * 2^b / 16]) belong to x = first + 16 j + w.
    """

    words_a: Words
    words_b: Words
    groups_a: Words
    groups_b: Words
    seen_a: LongWords
    """Bitmap of groups, 2^(b+5) bits; see `_mark`."""
    seen_b: LongWords
    kept_a: Indices
    """Positions that passed the filter, room for 2^b + 1."""
    kept_b: Indices
    heads: Indices
    """Hash table over ``kept_a``, 2^b heads of chains."""
    links: Indices


def filter_scratch(bits: int) -> FilterScratch:
    """Return the memory to join buckets of 2^``bits`` values."""
    size = 1 << bits
    words_a, words_b, groups_a, groups_b = (np.empty(size, np.uint32) for _ in range(4))
    seen_a, seen_b = (np.empty(size // 2, np.uint64) for _ in range(2))
    kept_a, kept_b, heads, links = (np.empty(size + 1, np.int32) for _ in range(4))
    return FilterScratch(words_a, words_b, groups_a, groups_b, seen_a, seen_b, kept_a, kept_b, heads, links)


@kernel
def join_filtered(key: Words, first_a: U64, first_b: U64, scratch: FilterScratch, matches: Matches) -> int:
    """Find all matching pairs of two buckets and return how many there are; as many as fit are in ``matches``."""
    # Taken out of the tuple once: inside a loop each access would count a reference.
    words_a, words_b, groups_a, groups_b, seen_a, seen_b, kept_a, kept_b, heads, links = scratch
    mask = U64(64 * seen_a.size - 1)
    _expand(key, first_a, words_a, groups_a)
    _expand(key, first_b, words_b, groups_b)
    seen_a[:] = 0
    seen_b[:] = 0
    for i in range(U64(groups_a.size)):
        _mark(seen_a, mask, U64(groups_a[i]))
    count_b = _keep_near(groups_b, seen_a, mask, kept_b)
    for t in range(count_b):
        _mark(seen_b, mask, U64(groups_b[kept_b[t]]))
    count_a = _keep_near(groups_a, seen_b, mask, kept_a)
    slots = _chain(groups_a, kept_a, count_a, heads, links)
    return _compare(first_a, first_b, scratch, count_b, slots, matches)


@kernel
def _compare(
    first_a: U64, first_b: U64, scratch: FilterScratch, count_b: int, slots: U64, matches: Matches
) -> int:
    words_a, words_b, groups_a, groups_b, _, _, kept_a, kept_b, heads, links = scratch
    found, same = 0, first_a == first_b
    for t in range(count_b):
        j = U64(kept_b[t])
        group = U64(groups_b[j])
        for b_left in range(2):
            wanted = U64(group + _ONE) if b_left else U64(group - _ONE)
            entry = heads[wanted & slots]
            while entry >= 0:
                i = U64(kept_a[entry])
                # Joined with itself a bucket gives each match twice, once from either side.
                if U64(groups_a[i]) == wanted and not (same and b_left):
                    y_a, x_a = _value(words_a, first_a, i)
                    y_b, x_b = _value(words_b, first_b, j)
                    found += _note(y_a, x_a, y_b, x_b, b_left, matches, found)
                entry = links[entry]
    return found


@kernel
def _expand(key: Words, first: U64, words: Words, groups: Words) -> None:
    columns = words.size // BLOCK_WORDS
    fill_keystream(key, U64(first >> U64(4)), words.reshape(BLOCK_WORDS, columns))
    top = U32(first >> U64(K - EXTRA_BITS))
    for i in range(U64(words.size)):
        groups[i] = group_of(words[i], top)[0]


@part
def _mark(seen: LongWords, mask: U64, group: U64) -> None:
    """Set the bit of a group; the lowest two of a word also as the highest two of the word before.

    So one look at one word tells of both neighbours of a group, which are two bits apart.
    """
    bit = group & mask
    low, word = bit & _BIT_MASK, bit >> _WORD_SHIFT
    seen[word] |= U64(_ONE << low)
    if low < U64(2):
        before = U64(word - _ONE) & (mask >> _WORD_SHIFT)
        seen[before] |= U64(_ONE << U64(low + U64(62)))


@part
def _keep_near(groups: Words, seen: LongWords, mask: U64, kept: Indices) -> int:
    count = U64(0)
    for i in range(U64(groups.size)):
        kept[count] = i
        below = U64(U64(groups[i]) - _ONE) & mask
        bits = seen[below >> _WORD_SHIFT] >> (below & _BIT_MASK)
        count = U64(count + ((bits | (bits >> U64(2))) & _ONE))
    return int(count)


@part
def _chain(groups: Words, kept: Indices, count: int, heads: Indices, links: Indices) -> U64:
    size = 64
    while size < count:
        size *= 2
    mask = U64(size - 1)
    heads[:size] = -1
    for t in range(count):
        slot = U64(groups[kept[t]]) & mask
        links[t] = heads[slot]
        heads[slot] = t
    return mask


@part
def _value(words: Words, first: U64, position: U64) -> tuple[U64, U64]:
    """Return y and x of the entry at ``position``."""
    columns = U64(words.size // BLOCK_WORDS)
    x = U64(first + U64(U64(U64(position % columns) * U64(BLOCK_WORDS)) + U64(position // columns)))
    return U64(U64(words[position]) << U64(EXTRA_BITS)) | U64(x >> U64(K - EXTRA_BITS)), x


@kernel
def _note(y_a: U64, x_a: U64, y_b: U64, x_b: U64, b_left: int, matches: Matches, found: int) -> int:
    """Add a pair of neighbouring groups where it matches; return how many matches that makes, 0 or 1."""
    y, xs = matches
    left, right = min(y_a, y_b), max(y_a, y_b)
    group = U64(left // U64(GROUP_SIZE))
    remainder = U32(left - U64(group * U64(GROUP_SIZE)))
    other = U32(right - U64(U64(group + _ONE) * U64(GROUP_SIZE)))
    if mismatch(U32(group & _ONE), remainder, other):
        return 0
    if found < y.size:
        y[found] = left
        xs[found, 0] = x_b if b_left else x_a
        xs[found, 1] = x_a if b_left else x_b
    return 1
