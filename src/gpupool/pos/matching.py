"""The matching rule: when two entries of neighbouring groups belong together.

A y is split into its group (y div 15113) and remainder (y mod 15113), the remainder again into row (div 127) and
column (mod 127). The textbook rule lists 64 target remainders for each left entry. Solved for the row difference
m, one entry on the right has at most one m that could fit, so a single comparison decides instead of a list.
"""

import numpy as np

from gpupool.pos.compiling import part
from gpupool.pos.parameters import COLUMNS, GROUP_SIZE, ROWS, TARGETS

U32 = np.uint32
U64 = np.uint64
_RECIPROCAL = U64(2328086553)
"""floor(2^45 / 15113). Multiplying by it and shifting gives word * 64 div 15113, at most one too small."""
_SHIFT = U64(39)


@part
def group_of(word: U32, top: U32) -> U32:
    """Return the group of y = ``word`` * 64 + ``top`` (a k=32 value of table 1) in 32-bit arithmetic."""
    group = U32(U64(U64(word) * _RECIPROCAL) >> _SHIFT)
    if U32(U32(U32(word << U32(6)) | top) - U32(group * U32(GROUP_SIZE))) >= U32(GROUP_SIZE):
        group = U32(group + U32(1))
    return group


@part
def remainder_of(word: U32, top: U32, group: U32) -> U32:
    """Return the remainder of the same y; all but the low 32 bits cancel out."""
    return U32(U32(U32(word << U32(6)) | top) - U32(group * U32(GROUP_SIZE)))


@part
def remainders_match(parity: np.int64, left: U32, right: U32) -> bool:
    """Tell whether two remainders match; ``parity`` is the left group's lowest bit, right is in the next group."""
    left_row, right_row = left // U32(COLUMNS), right // U32(COLUMNS)
    m = np.int64(right_row) - np.int64(left_row)
    if m < 0:
        m += ROWS
    if m >= TARGETS:
        return False
    left_column = np.int64(left) - np.int64(left_row) * COLUMNS
    shift = np.int64(right) - np.int64(right_row) * COLUMNS - left_column
    if shift < 0:
        shift += COLUMNS
    root = 2 * m + parity
    return bool(shift == (root * root) % COLUMNS)
