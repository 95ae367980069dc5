"""The numbers that define a proof of space, and how much of it a compressed plot leaves out.

A proof is 64 values x of k bits. Seven tables pair them up: an entry of table t stands on 2^(t-1) of them. A plot
keeps only the upper bits of every x and forgets the lower b, called the dropped bits here; a plot of level L has
k = 32 and b = 15 + L.
"""

from typing import Final

from gpupool.core.errors import UnsupportedError

K: Final = 32
"""The plot size of nearly all farms."""
PLOT_SIZES: Final = range(18, 41)
"""Plot sizes that can be recovered."""
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

LEVELS: Final = range(1, 8)
"""Compression levels that have a name."""
BITS_AT_LEVEL_ZERO: Final = 15
MOST_DROPPED_BITS: Final = 24
_MOST_MATCHES_LOG: Final = 20
"""Two buckets may be expected to have 2^20 matches at most, which bounds the memory of a request."""


def dropped_bits(level: int) -> int:
    """Return how many low bits of every x a plot of ``level`` (1..7) leaves out.

    Raises UnsupportedError for any other level.
    """
    if level not in LEVELS:
        raise UnsupportedError(
            f"Compression level {level} is not supported.",
            remedy=f"Use levels {LEVELS.start} to {LEVELS.stop - 1}.",
        )
    return BITS_AT_LEVEL_ZERO + level


def level_of(bits: int) -> int:
    """Return the level (1..7) that drops ``bits`` (16..22); raises UnsupportedError for any other number."""
    level = bits - BITS_AT_LEVEL_ZERO
    if level not in LEVELS:
        first, last = dropped_bits(LEVELS.start), dropped_bits(LEVELS.stop - 1)
        raise UnsupportedError(
            f"No compression level drops {bits} bits of an x.",
            remedy=f"Use {first} to {last} dropped bits.",
        )
    return level


def check_plot_size(k: int) -> None:
    """Raise UnsupportedError unless plots of size ``k`` can be recovered."""
    if k not in PLOT_SIZES:
        raise UnsupportedError(
            f"Plots of k={k} are not supported.",
            remedy=f"Plots of k={PLOT_SIZES.start} to k={PLOT_SIZES.stop - 1} can be recovered.",
        )


def most_dropped_bits(k: int) -> int:
    """Return how many low bits of an x of ``k`` bits may be missing: 24, or fewer in a small plot.

    The smaller the plot, the more values match by chance: two buckets of 2^b have about 2^(2b - k + 1) matches.
    """
    check_plot_size(k)
    return min(MOST_DROPPED_BITS, k - 2, (_MOST_MATCHES_LOG + k - 1) // 2)


def check_dropped_bits(k: int, bits: int) -> None:
    """Raise UnsupportedError unless ``bits`` (1 or more) missing bits of each x of a plot of size ``k`` can be found."""
    most = most_dropped_bits(k)
    if not 1 <= bits <= most:
        raise UnsupportedError(
            f"Plots of k={k} that drop {bits} bits of an x are not supported.",
            remedy=f"Use 1 to {most} dropped bits for k={k}.",
        )
