"""What a compressed plot keeps of a proof; the way from an answer back to the question.

Used to build requests from known proofs, and to check that a recovered proof is one of the asked line points.
"""

from collections.abc import Sequence

from gpupool.pos.line_points import encode


def truncate(xs: Sequence[int], bits: int) -> tuple[int, ...]:
    """Return a line point for each pair of ``xs`` (proof order, even number) after ``bits`` low bits are dropped."""
    return tuple(encode(xs[i] >> bits, xs[i + 1] >> bits) for i in range(0, len(xs), 2))


def stands_on(xs: Sequence[int], bits: int, line_points: Sequence[int]) -> bool:
    """Tell whether ``xs`` (proof order) are what ``line_points`` was made of.

    A plot sorts each table, so what it gives of a proof has siblings in either order, in every table. Which one is left
    only the tables tell, and whoever asks this judges those too; so the order of the pairs says nothing.
    """
    return sorted(truncate(xs, bits)) == sorted(line_points)


def truncate_twice(xs: Sequence[int], bits: int) -> tuple[int, ...]:
    """Return the line points of line points, one for each four of ``xs`` (proof order), as a quality look-up has."""
    pairs = truncate(xs, bits)
    return tuple(encode(pairs[i], pairs[i + 1]) for i in range(0, len(pairs), 2))
