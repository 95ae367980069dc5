"""The numbers that define a proof of space, and how much of it a compressed plot leaves out.

A proof is 64 values x of k bits. Seven tables pair them up: an entry of table t stands on 2^(t-1) of them. A plot
of level L keeps only the upper bits of every x and forgets the lower ``15 + L``, called the dropped bits here.
"""

from typing import Final

from gpupool.core.errors import UnsupportedError

K: Final = 32
"""The plot size that can be recovered."""
PROOF_LENGTH: Final = 64
"""Values x in a full proof."""
PAIR_COUNT: Final = PROOF_LENGTH // 2
LAST_TABLE: Final = 7
EXTRA_BITS: Final = 6
"""A y has this many bits more than an x."""
GROUP_SIZE: Final = 15113
"""Values y that share one group; only entries of neighbouring groups can match (119 * 127)."""
ROWS: Final = 119
COLUMNS: Final = 127
TARGETS: Final = 1 << EXTRA_BITS
"""Remainders of the next group that match a given remainder."""
METADATA_WORDS: Final = (0, 0, 1, 2, 4, 4, 3, 2)
"""Metadata of one side that goes into table t, in units of k bits (index: t = 2..7)."""

LEVELS: Final = range(1, 6)
"""Compression levels that can be recovered."""
_BITS_AT_LEVEL_ZERO: Final = 15


def dropped_bits(level: int) -> int:
    """Return how many low bits of every x a plot of ``level`` (1..5) leaves out.

    Raises UnsupportedError for any other level.
    """
    if level not in LEVELS:
        raise UnsupportedError(
            f"Compression level {level} is not supported.",
            remedy=f"Use levels {LEVELS.start} to {LEVELS.stop - 1}.",
        )
    return _BITS_AT_LEVEL_ZERO + level


def level_of(bits: int) -> int:
    """Return the level (1..5) that drops ``bits`` (16..20); raises UnsupportedError for any other number."""
    level = bits - _BITS_AT_LEVEL_ZERO
    if level not in LEVELS:
        first, last = dropped_bits(LEVELS.start), dropped_bits(LEVELS.stop - 1)
        raise UnsupportedError(
            f"Plots that drop {bits} bits of an x are not supported.",
            remedy=f"Use {first} to {last} dropped bits.",
        )
    return level


def check_plot_size(k: int) -> None:
    """Raise UnsupportedError unless plots of size ``k`` can be recovered."""
    if k != K:
        raise UnsupportedError(f"Plots of k={k} are not supported.", remedy=f"Only k={K} can be recovered.")
