"""Joining the partitions of two buckets: which entries of neighbouring groups match.

For each partition the entries of one bucket are hung into a table of 16-bit heads that stays in a near cache, the
entries of the other one look up both groups beside theirs, and the candidates found that way are judged. All loops
over entries are free of branches: whether there is a candidate is added to a count instead of asked. Indices have no
sign, since the compiler would guard each signed one against counting from the end.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpupool.pos.compiling import LongWords, Words, kernel, part
from gpupool.pos.dealing import REST_SHIFT, SLOT_SHIFT, Bucket
from gpupool.pos.layout import Layout
from gpupool.pos.matching import mismatch
from gpupool.pos.parameters import GROUP_SIZE

U32 = np.uint32
U64 = np.uint64
_HEAD_BITS = 15
"""Heads take 64 KiB; at most a quarter of them is in use at any level."""
_ONE = U64(1)
_HALF = U64(16)
_LOW = U64(0xFFFF)
_REST_MASK = U64(0x3FFF)
_POSITION_MASK = U64(0xFFFFFF)

ShortWords: TypeAlias = NDArray[np.uint16]


class JoinScratch(NamedTuple):
    """Memory to join one partition."""

    heads: ShortWords
    """One plus the index of the first entry of a chain; 0 for none."""
    links: ShortWords
    candidates: Words
    """Index in a plus one (upper half), index in b; two for each entry of b."""
    lower: LongWords
    """The cell of a candidate with the smaller slot, which is the left one if they match."""
    upper: LongWords
    verdicts: Words
    """0 where a candidate matches."""


class Matches(NamedTuple):
    """Pairs of x that match, that is, entries of table 2 whose y is still to be computed."""

    y: LongWords
    """[n] y of the left side."""
    xs: LongWords
    """[n, 2] left, right."""


def join_scratch(laid: Layout) -> JoinScratch:
    """Return memory to join partitions of this layout."""
    most = 2 * laid.room + 2
    return JoinScratch(
        heads=np.empty(1 << _HEAD_BITS, np.uint16),
        links=np.empty(laid.room + 1, np.uint16),
        candidates=np.empty(most, np.uint32),
        lower=np.empty(most, np.uint64),
        upper=np.empty(most, np.uint64),
        verdicts=np.empty(most, np.uint32),
    )


def new_matches(count: int) -> Matches:
    """Return room for ``count`` matches."""
    return Matches(np.empty(count, np.uint64), np.empty((count, 2), np.uint64))


@kernel
def join_rows(
    a: Bucket,
    b: Bucket,
    first_a: U64,
    first_b: U64,
    span_bits: int,
    room: int,
    first_row: int,
    start: int,
    stop: int,
    scratch: JoinScratch,
    matches: Matches,
    found: int,
) -> int:
    """Add the matches in rows ``start`` .. ``stop`` - 1 to ``found`` others and return how many there are then.

    ``a`` was dealt with edges, ``b`` without; ``first_a`` and ``first_b`` are their smallest x; row 0 stands for
    partition ``first_row``. Matches beyond the room are only counted.
    """
    cells_a, ends_a = a
    cells_b, ends_b = b
    heads, links, candidates, lower, upper, verdicts = scratch
    same = first_a == first_b
    for row in range(start, stop):
        begin = U64(row * room)
        count = _find_candidates(
            cells_a, begin, U64(ends_a[row]), cells_b, begin, U64(ends_b[row]), heads, links, candidates
        )
        base = U64(U64((first_row + row) << span_bits) - _ONE)
        while count:
            _judge(cells_a, cells_b, begin, candidates, count, lower, upper, verdicts)
            for t in range(count):
                candidate = U64(candidates[t])
                if verdicts[t] == 0:
                    cell_a = cells_a[U64(U64(begin + (candidate >> _HALF)) - _ONE)]
                    cell_b = cells_b[U64(begin + (candidate & _LOW))]
                    # Joined with itself a bucket gives each match twice, once from either side.
                    if not (same and cell_a > cell_b):
                        _note(cell_a, cell_b, first_a, first_b, base, matches, found)
                        found += 1
            count = _follow(candidates, count, links)
    return found


@part
def _find_candidates(
    cells_a: LongWords,
    begin_a: U64,
    end_a: U64,
    cells_b: LongWords,
    begin_b: U64,
    end_b: U64,
    heads: ShortWords,
    links: ShortWords,
    candidates: Words,
) -> U64:
    mask = U64(heads.size - 1)
    heads[:] = 0
    for i in range(U64(end_a - begin_a)):
        slot = cells_a[U64(begin_a + i)] >> SLOT_SHIFT
        links[U64(i + _ONE)] = heads[slot & mask]
        heads[slot & mask] = U64(i + _ONE)
    count = U64(0)
    for i in range(U64(end_b - begin_b)):
        slot = cells_b[U64(begin_b + i)] >> SLOT_SHIFT
        head = U64(heads[U64(slot - _ONE) & mask])
        candidates[count] = U32(U64(head << _HALF) | i)
        count = U64(count + U64(head != 0))
        head = U64(heads[U64(slot + _ONE) & mask])
        candidates[count] = U32(U64(head << _HALF) | i)
        count = U64(count + U64(head != 0))
    return count


@part
def _judge(
    cells_a: LongWords,
    cells_b: LongWords,
    begin: U64,
    candidates: Words,
    count: U64,
    lower: LongWords,
    upper: LongWords,
    verdicts: Words,
) -> None:
    for t in range(count):
        candidate = U64(candidates[t])
        cell_a = cells_a[U64(U64(begin + (candidate >> _HALF)) - _ONE)]
        cell_b = cells_b[U64(begin + (candidate & _LOW))]
        lower[t] = min(cell_a, cell_b)
        upper[t] = max(cell_a, cell_b)
    for t in range(count):
        left, right = lower[t], upper[t]
        slot = left >> SLOT_SHIFT
        # Partitions start at even groups, so a slot tells the parity of its group.
        parity = U32(U64(slot - _ONE) & _ONE)
        far = U32(U64(U64(right >> SLOT_SHIFT) - slot) ^ _ONE)
        remainders = U32(left >> REST_SHIFT & _REST_MASK), U32(right >> REST_SHIFT & _REST_MASK)
        verdicts[t] = far | mismatch(parity, remainders[0], remainders[1])


@part
def _follow(candidates: Words, count: U64, links: ShortWords) -> U64:
    """Replace each candidate by the next one in its chain; return how many are left."""
    kept = U64(0)
    for t in range(count):
        candidate = U64(candidates[t])
        following = U64(links[candidate >> _HALF])
        candidates[kept] = U32(U64(following << _HALF) | (candidate & _LOW))
        kept = U64(kept + U64(following != 0))
    return kept


@kernel
def _note(
    cell_a: U64, cell_b: U64, first_a: U64, first_b: U64, base: U64, matches: Matches, found: int
) -> None:
    y, xs = matches
    if found >= y.size:
        return
    left = min(cell_a, cell_b)
    y[found] = U64(
        U64(U64(base + (left >> SLOT_SHIFT)) * U64(GROUP_SIZE)) + (left >> REST_SHIFT & _REST_MASK)
    )
    x_a, x_b = U64(first_a + (cell_a & _POSITION_MASK)), U64(first_b + (cell_b & _POSITION_MASK))
    xs[found, 0] = x_b if cell_a > cell_b else x_a
    xs[found, 1] = x_a if cell_a > cell_b else x_b
