"""Line points can be undone, and the one ambiguity they have is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.core.errors import InvalidInputError
from gpupool.pos.line_points import decode, encode, line_point_limit, readings
from gpupool.pos.truncation import truncate, truncate_twice

NUMBERS = st.integers(0, 2**64 - 1)
LIMITS = st.integers(2, 2**32)


@given(NUMBERS, NUMBERS)
def test_two_different_numbers_survive(first: int, second: int) -> None:
    assert encode(first, second) == encode(second, first)
    if first != second:
        assert decode(encode(first, second)) == (max(first, second), min(first, second))


@given(st.integers(0, 2**128 - 1))
def test_every_number_is_the_line_point_of_one_pair(line_point: int) -> None:
    larger, smaller = decode(line_point)
    assert larger > smaller >= 0
    assert encode(larger, smaller) == line_point


@given(NUMBERS)
def test_two_equal_numbers_look_like_another_pair(number: int) -> None:
    assert decode(encode(number, number)) == (number + 1, 0)


@given(LIMITS, st.data())
def test_the_readings_are_all_pairs_below_the_limit(limit: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, limit - 1))
    second = data.draw(st.integers(0, limit - 1) | st.just(first))
    found = readings(encode(first, second), limit)
    assert (max(first, second), min(first, second)) in found
    assert all(encode(*pair) == encode(first, second) and max(pair) < limit for pair in found)
    assert len(found) == len(set(found)) <= 2


def test_readings_agree_with_a_search() -> None:
    limit = 12
    for line_point in range(line_point_limit(limit)):
        expected = {
            (larger, smaller)
            for larger in range(limit)
            for smaller in range(larger + 1)
            if encode(larger, smaller) == line_point
        }
        assert set(readings(line_point, limit)) == expected


@given(LIMITS)
def test_the_limit_is_the_first_number_that_is_refused(limit: int) -> None:
    assert readings(line_point_limit(limit) - 1, limit)
    with pytest.raises(InvalidInputError, match="too large"):
        readings(line_point_limit(limit), limit)


@given(st.integers(18, 40), st.data())
def test_a_truncated_pair_is_among_the_readings(k: int, data: st.DataObject) -> None:
    bits = data.draw(st.integers(1, min(24, k - 2)))
    xs = data.draw(st.lists(st.integers(0, 2**k - 1), min_size=4, max_size=4))
    if data.draw(st.booleans()):
        xs[1] = xs[0] >> bits << bits  # in the same bucket
    limit = 1 << (k - bits)
    for index, line_point in enumerate(truncate(xs, bits)):
        pair = sorted((xs[2 * index] >> bits, xs[2 * index + 1] >> bits), reverse=True)
        assert tuple(pair) in readings(line_point, limit)
    inner = {frozenset(pair) for pair in readings(truncate_twice(xs, bits)[0], line_point_limit(limit))}
    assert frozenset(truncate(xs, bits)) in inner
