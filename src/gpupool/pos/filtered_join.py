"""Joining two small buckets (b < 18): throw away what has no neighbour, then look at the rest.

A bitmap over the groups fits the second-level cache. With 2^(b+5) bits it is one thirty-second full, so each of the
two passes keeps about one entry in sixteen, and only those few meet in a hash table.
"""

from typing import NamedTuple

import numpy as np

from gpupool.pos.buckets import Bucket
from gpupool.pos.compiling import Indices, Words, kernel, part
from gpupool.pos.matching import remainder_of, remainders_match

U32 = np.uint32
_ONE = U32(1)
_WORD_SHIFT = U32(5)
_WORD_MASK = U32(31)


class FilterScratch(NamedTuple):
    """Memory for one join of buckets of 2^b values."""

    seen_a: Words
    """Bitmap of groups, 2^(b+5) bits."""
    seen_b: Words
    kept_a: Indices
    """Positions that passed the filter, room for 2^b + 1."""
    kept_b: Indices
    heads: Indices
    """Hash table over ``kept_a``, 2^b heads of chains."""
    links: Indices


def filter_scratch(bits: int) -> FilterScratch:
    """Return the memory to join buckets of 2^``bits`` values."""
    size = 1 << bits
    return FilterScratch(
        seen_a=np.empty(size, np.uint32),
        seen_b=np.empty(size, np.uint32),
        kept_a=np.empty(size + 1, np.int32),
        kept_b=np.empty(size + 1, np.int32),
        heads=np.empty(size, np.int32),
        links=np.empty(size, np.int32),
    )


@part
def _mark(seen: Words, mask: U32, group: U32) -> None:
    bit = group & mask
    seen[bit >> _WORD_SHIFT] |= U32(_ONE << (bit & _WORD_MASK))


@part
def _near(seen: Words, mask: U32, group: U32) -> U32:
    below, above = U32(group - _ONE) & mask, U32(group + _ONE) & mask
    low = U32(seen[below >> _WORD_SHIFT] >> (below & _WORD_MASK))
    high = U32(seen[above >> _WORD_SHIFT] >> (above & _WORD_MASK))
    return U32((low | high) & _ONE)


@part
def _keep_near(groups: Words, seen: Words, mask: U32, kept: Indices) -> int:
    count = 0
    for i in range(groups.size):
        kept[count] = i
        count += int(_near(seen, mask, groups[i]))
    return count


@part
def _chain(groups: Words, kept: Indices, count: int, heads: Indices, links: Indices) -> U32:
    size = 64
    while size < count:
        size *= 2
    mask = U32(size - 1)
    heads[:size] = -1
    for t in range(count):
        slot = groups[kept[t]] & mask
        links[t] = heads[slot]
        heads[slot] = t
    return mask


@kernel
def join_filtered(a: Bucket, b: Bucket, scratch: FilterScratch, matches: Indices) -> int:
    """Find all matching pairs of two buckets and return how many there are.

    As many as fit are written to ``matches`` [room, 3]: position in ``a``, position in ``b``, 1 where ``b`` is left.
    """
    # Taken out of the tuples once: inside a loop each access would count a reference.
    seen_a, seen_b, kept_a, kept_b, heads, links = scratch
    groups_a, groups_b = a.groups, b.groups
    mask = U32(32 * seen_a.size - 1)
    seen_a[:] = 0
    seen_b[:] = 0
    for i in range(groups_a.size):
        _mark(seen_a, mask, groups_a[i])
    count_b = _keep_near(groups_b, seen_a, mask, kept_b)
    for t in range(count_b):
        _mark(seen_b, mask, groups_b[kept_b[t]])
    count_a = _keep_near(groups_a, seen_b, mask, kept_a)
    slots = _chain(groups_a, kept_a, count_a, heads, links)
    return _compare(a, b, scratch, count_b, slots, matches)


@kernel
def _compare(a: Bucket, b: Bucket, scratch: FilterScratch, count_b: int, slots: U32, matches: Indices) -> int:
    _, _, kept_a, kept_b, heads, links = scratch
    words_a, groups_a, top_a, _ = a
    words_b, groups_b, top_b, _ = b
    found = 0
    for t in range(count_b):
        j = kept_b[t]
        group = groups_b[j]
        remainder = remainder_of(words_b[j], top_b, group)
        for b_left in range(2):
            wanted = U32(group + _ONE) if b_left else U32(group - _ONE)
            entry = heads[wanted & slots]
            while entry >= 0:
                i = kept_a[entry]
                if groups_a[i] == wanted:
                    other = remainder_of(words_a[i], top_a, wanted)
                    if _fits(group, remainder, wanted, other, b_left):
                        if found < matches.shape[0]:
                            matches[found, 0] = i
                            matches[found, 1] = j
                            matches[found, 2] = b_left
                        found += 1
                entry = links[entry]
    return found


@part
def _fits(group_b: U32, remainder_b: U32, group_a: U32, remainder_a: U32, b_left: int) -> bool:
    if b_left:
        return remainders_match(np.int64(group_b & _ONE), remainder_b, remainder_a)
    return remainders_match(np.int64(group_a & _ONE), remainder_a, remainder_b)
