"""What recovering takes before it is begun: values to compute, and memory while it runs. No numba.

Times follow from a rate: values a second differ little from level to level (by a factor of 1.5 from C1 to C7 on one
core), so one measured level tells of the others.
"""

from dataclasses import dataclass
from typing import Final, Literal

from gpupool.pos.layout import layout
from gpupool.pos.parameters import PAIR_COUNT

Kind = Literal["proof", "quality"]
_PAIRS: Final[dict[Kind, int]] = {"proof": PAIR_COUNT, "quality": 2}
_FIXED_BYTES: Final = 4 << 20
_MATCH_BYTES: Final = 200
"""Of a match in table 2, with the entries and links made of it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request takes on a CPU."""

    values: int
    """Values x to be computed and joined, at least: a doubtful quality takes twice as many."""
    memory_bytes: int
    """At most, for each thread that works on it."""


def cost(kind: Kind, bits: int, k: int) -> Cost:
    """Return what it takes to find ``bits`` missing bits in each x of ``k`` bits; raises UnsupportedError."""
    laid = layout(k, bits)
    matches = 64 + (8 << max(0, 2 * bits - k + 1))
    return Cost(
        values=2 * _PAIRS[kind] * laid.passes << bits,
        memory_bytes=_FIXED_BYTES + laid.cell_bytes + 32 * laid.room + _MATCH_BYTES * matches,
    )
