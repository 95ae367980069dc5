"""Answers that are remembered: within their bounds, the longest unused forgotten first."""

from hypothesis import given
from hypothesis import strategies as st

from gpupool.recompute.server.answers import BYTES, ENTRIES, KnownAnswers


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 64))), st.integers(1, 5), st.integers(700, 9000))
def test_both_bounds_hold_and_what_is_kept_is_right(
    puts: list[tuple[int, int]], entries: int, size: int
) -> None:
    known = KnownAnswers(entries, size)
    latest = {}
    for question, count in puts:
        latest[question] = tuple(range(count))
        known.put(question, latest[question], 1)
        assert len(known) <= entries
        assert 0 <= known.bytes <= size
    for question, xs in latest.items():
        assert known.get(question) in {None, xs}
    if not len(known):
        assert known.bytes == 0


def test_the_longest_unused_is_forgotten() -> None:
    known = KnownAnswers(2, BYTES)
    known.put("a", (1,), 1)
    known.put("b", (2,), 1)
    assert known.get("a") == (1,)
    known.put("c", (3,), 1)
    assert (known.get("a"), known.get("b"), known.get("c")) == ((1,), None, (3,))
    assert known.hits == 3


def test_by_default_it_holds_a_thousand_proofs() -> None:
    known = KnownAnswers()
    for number in range(2000):
        known.put(number, tuple(range(64)), 32)
    assert 900 <= len(known) <= ENTRIES
    assert known.bytes <= BYTES
