"""Table 1 on demand: all values x that share their upper bits, with the group of each y.

Values are laid out as the keystream comes: row w, column j of ``words`` belongs to x = first + 16 j + w, because a
block of ChaCha8 holds 16 values and neighbouring blocks are computed side by side.
"""

from typing import NamedTuple

import numpy as np

from gpupool.pos.chacha import BLOCK_WORDS, fill_keystream
from gpupool.pos.compiling import Indices, LongWords, Words, kernel
from gpupool.pos.matching import group_of
from gpupool.pos.parameters import EXTRA_BITS, K

U32 = np.uint32
U64 = np.uint64


class Bucket(NamedTuple):
    """The 2^b values x whose upper bits are one number."""

    words: Words
    """Upper 32 bits of each y, flat [2^b]."""
    groups: Words
    """Group of each y [2^b]; empty where the join works it out itself."""
    top: U32
    """Lower 6 bits of every y here: the upper 6 bits of x, the same for all while b <= 26."""
    first: U32
    """The smallest x."""


def expand(key: Words, upper: int, bits: int, words: Words, groups: Words) -> Bucket:
    """Fill ``words`` (and ``groups``, unless empty) with the bucket of x = ``upper`` * 2^bits + 0 .. 2^bits - 1."""
    first = upper << bits
    fill_keystream(key, U32(first // BLOCK_WORDS), words.reshape(BLOCK_WORDS, -1))
    top = U32(first >> (K - EXTRA_BITS))
    _fill_groups(words, top, groups)
    return Bucket(words, groups, top, U32(first))


@kernel
def _fill_groups(words: Words, top: U32, groups: Words) -> None:
    for i in range(groups.size):
        groups[i] = group_of(words[i], top)


@kernel
def pick_values(bucket: Bucket, positions: Indices, y: LongWords, metadata: Words, xs: Words) -> None:
    """Write the table 1 entries at ``positions`` [n] of a bucket to y [n], metadata [n, 4] and xs [n, 1]."""
    columns = bucket.words.size // BLOCK_WORDS
    for row in range(positions.size):
        position = positions[row]
        x = U32(bucket.first + U32(position % columns * BLOCK_WORDS + position // columns))
        y[row] = U64(U64(bucket.words[position]) << U64(EXTRA_BITS)) | U64(bucket.top)
        metadata[row, 0] = x
        xs[row, 0] = x
