"""The matching rule: when two entries of neighbouring groups belong together.

A y is split into its group (y div 15113) and remainder (y mod 15113), the remainder again into row (div 127) and
column (mod 127). The textbook rule lists 64 target remainders for each left entry. Solved for the row difference
m, one entry on the right has at most one m that could fit, so a single comparison decides instead of a list.

There is no branch in here: half of all candidates fail at either step, which no processor predicts, and without
branches the compiler judges several candidates at once.
"""

import numpy as np

from gpupool.pos.compiling import part
from gpupool.pos.parameters import COLUMNS, EXTRA_BITS, ROWS

U32 = np.uint32
_ROWS = U32(ROWS)
_COLUMNS = U32(COLUMNS)
_RECIPROCAL = U32(33027)
_SHIFT = U32(22)
"""33027 / 2^22 is a little more than 1 / 127: exact for what is below 2^16."""


@part
def _by_columns(value: U32) -> U32:
    """Return ``value`` (< 65,536) div 127."""
    return U32(U32(value * _RECIPROCAL) >> _SHIFT)


@part
def mismatch(parity: U32, left: U32, right: U32) -> U32:
    """Return 0 where two remainders match, else another number.

    ``parity`` is the lowest bit of the left entry's group; the right one must be in the next group.
    """
    left_row, right_row = _by_columns(left), _by_columns(right)
    difference = U32(right_row - left_row)
    # 119 is added where the difference is negative, which its highest bit tells.
    m = U32(difference + U32(_ROWS & U32(U32(0) - U32(difference >> U32(31)))))
    columns = U32(U32(right - left) - U32(difference * _COLUMNS))
    root = U32(U32(m + m) + parity)
    distance = U32(U32(root * root) + U32(_COLUMNS - columns))
    rest = U32(distance - U32(_by_columns(distance) * _COLUMNS))
    return U32(rest | U32(m >> U32(EXTRA_BITS)))
