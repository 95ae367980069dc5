"""Line points: the way a plot writes down an unordered pair of numbers as one.

The pair (X, Y) with X > Y is the number X(X-1)/2 + Y, which can be undone. Two equal numbers do not fit that
scheme: (a, a) gets the number of (a+1, 0). In real plots both values of a pair are different, but their upper bits
may be the same, so a decoded (X, 0) has a second reading, (X-1, X-1). Ignoring it loses one proof in a hundred at
level 5, and more above.
"""

from math import isqrt

from gpupool.core.errors import InvalidInputError


def encode(first: int, second: int) -> int:
    """Return the line point of two numbers >= 0, in any order."""
    larger, smaller = max(first, second), min(first, second)
    return larger * (larger - 1) // 2 + smaller


def decode(line_point: int) -> tuple[int, int]:
    """Return the pair X > Y >= 0 whose line point (>= 0) this is."""
    larger = (1 + isqrt(8 * line_point + 1)) // 2
    return larger, line_point - larger * (larger - 1) // 2


def readings(line_point: int, limit: int) -> list[tuple[int, int]]:
    """Return every pair of numbers below ``limit``, the larger one first, that has this line point: one or two.

    Raises InvalidInputError where there is none.
    """
    larger, smaller = decode(line_point)
    found = [(larger, smaller)] if larger < limit else []
    if smaller == 0 and larger <= limit:
        found.append((larger - 1, larger - 1))
    if not found:
        raise InvalidInputError(
            f"The line point {line_point:#x} is too large: it must come from two numbers below {limit:#x}.",
            remedy="Check level and k; a line point of another level looks like this.",
        )
    return found


def line_point_limit(limit: int) -> int:
    """Return the smallest number that is no line point of two numbers below ``limit`` (> 0)."""
    return encode(limit - 1, limit - 1) + 1
