"""From a proof to its quality, the hash that decides whether a farm may use it.

The last five bits of the challenge lead from the top of the tables down to one pair of x. At every step a bit says
which of two siblings to follow: 0 the smaller, 1 the larger, where siblings are ordered as the plot stores them.
"""

import hashlib
from collections.abc import Sequence

from gpupool.pos.line_points import encode

_PATH_BITS = 5


def choose_pair(xs: Sequence[int], challenge: bytes) -> tuple[int, int]:
    """Return the pair (smaller, larger) that the challenge picks from four x, two pairs in any order."""
    pairs = sorted((tuple(sorted(xs[:2])), tuple(sorted(xs[2:]))), key=lambda pair: encode(*pair))
    smaller, larger = pairs[challenge[-1] & 1]
    return smaller, larger


def proof_pair(xs: Sequence[int], challenge: bytes) -> tuple[int, int]:
    """Return the pair (smaller, larger) that the challenge picks from the 64 x of a proof in proof order."""
    ordered = plot_order(xs)
    index = 2 * (challenge[-1] & (1 << _PATH_BITS) - 1)
    return ordered[index], ordered[index + 1]


def plot_order(xs: Sequence[int]) -> list[int]:
    """Return ``xs`` (a power of two of them, proof order) in the order in which a plot stores them.

    Two sibling halves are ordered by their last values, then by the ones before, as their line points would be.
    """
    if len(xs) == 1:
        return list(xs)
    middle = len(xs) // 2
    left, right = plot_order(xs[:middle]), plot_order(xs[middle:])
    return left + right if left[::-1] < right[::-1] else right + left


def quality_string(challenge: bytes, pair: tuple[int, int], k: int) -> bytes:
    """Return the 32 bytes of quality for a chosen pair (smaller, larger) of ``k``-bit numbers."""
    packed = (pair[0] << k | pair[1]) << -2 * k % 8
    return hashlib.sha256(challenge + packed.to_bytes((2 * k + 7) // 8, "big")).digest()
