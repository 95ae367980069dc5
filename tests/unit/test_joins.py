"""Both ways to join two buckets find exactly the pairs that a plain search finds, for any k and any number of bits."""

import dataclasses
import itertools
from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.core.errors import GpupoolError
from gpupool.pos import layout as layouts
from gpupool.pos.chacha import plot_key
from gpupool.pos.joining import new_matches
from gpupool.pos.layout import Layout, layout
from gpupool.pos.pairs import FilterWorkspace, PartitionWorkspace, Workspace, new_workspace
from gpupool.pos.parameters import GROUP_SIZE, most_dropped_bits
from gpupool.pos.tables import Entries, next_table
from gpupool.pos.verification import _first_y, _matches

BITS = 12
KEY = plot_key(bytes(range(32)))
Pairs = set[tuple[int, int]]


@cache
def values(k: int, upper: int, bits: int) -> dict[int, int]:
    """y of each x of a bucket, by the verifier's own computation."""
    return {x: _first_y(KEY, k, x) for x in range(upper << bits, upper + 1 << bits)}


def searched(k: int, upper_a: int, upper_b: int, bits: int) -> Pairs:
    """Every match by the verifier's own rule, left side first."""
    a, b = values(k, upper_a, bits), values(k, upper_b, bits)
    by_group = defaultdict(list)
    for x, y in a.items():
        by_group[y // GROUP_SIZE].append((x, y))
    found: Pairs = set()
    for x, y in b.items():
        group = y // GROUP_SIZE
        found |= {(other, x) for other, other_y in by_group[group - 1] if _matches(other_y, y)}
        found |= {(x, other) for other, other_y in by_group[group + 1] if _matches(y, other_y)}
    return found


def pairs(space: Workspace, upper_a: int, upper_b: int) -> Pairs:
    found = space.table_two(KEY, upper_a, upper_b).xs.tolist()
    assert len({tuple(row) for row in found}) == len(found)
    return {(left, right) for left, right in found}


@pytest.mark.parametrize(("upper_a", "upper_b"), [(1, 2), (900000, 3), (2**20 - 1, 0), (7, 7)])
def test_both_joins_agree_with_a_search(upper_a: int, upper_b: int) -> None:
    expected = searched(32, upper_a, upper_b, BITS)
    assert pairs(FilterWorkspace(BITS), upper_a, upper_b) == expected
    assert pairs(PartitionWorkspace(BITS), upper_a, upper_b) == expected


def test_both_joins_agree_where_there_are_enough_matches_for_it_to_mean_something() -> None:
    one, other = FilterWorkspace(16), PartitionWorkspace(16)
    found = [(pairs(one, n, n + 1), pairs(other, n, n + 1)) for n in (*range(0, 40, 2), 65534)]
    assert all(ours == theirs for ours, theirs in found)
    assert sum(len(ours) for ours, _ in found) > 20


@settings(max_examples=40, deadline=None)
@given(st.integers(18, 40), st.integers(1, 10), st.data())
def test_any_size_and_any_number_of_bits_agrees_with_a_search(k: int, bits: int, data: st.DataObject) -> None:
    uppers = st.integers(0, (1 << (k - bits)) - 1)
    upper_a, upper_b = data.draw(uppers), data.draw(uppers)
    assert pairs(PartitionWorkspace(bits, k), upper_a, upper_b) == searched(k, upper_a, upper_b, bits)


@pytest.mark.parametrize("k", [18, 20, 22])
def test_small_plots_have_many_matches(k: int) -> None:
    expected = searched(k, 5, 9, BITS)
    assert len(expected) > 1 << 2 * BITS - k
    assert pairs(PartitionWorkspace(BITS, k), 5, 9) == expected
    same = searched(k, 5, 5, BITS)
    assert pairs(PartitionWorkspace(BITS, k), 5, 5) == same


@pytest.mark.parametrize("passes", [2, 3, 7])
def test_passes_change_nothing(passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matches across the border of two passes are found, too."""
    whole = pairs(PartitionWorkspace(16, 22), 3, 8)
    partitions = layout(22, 16).partitions
    assert partitions > 7
    monkeypatch.setattr(layouts, "_MOST_PASS", (1 << 16) // passes)
    space = PartitionWorkspace(16, 22)
    assert space.layout.passes >= passes
    assert pairs(space, 3, 8) == whole
    assert len(whole) > 1000


def test_matches_that_do_not_fit_get_more_room() -> None:
    for space in (FilterWorkspace(16), PartitionWorkspace(16)):
        whole = [pairs(new_workspace(16), n, n + 100) for n in range(5)]
        space.matches = new_matches(0)
        assert [pairs(space, n, n + 100) for n in range(5)] == whole
        assert any(whole)


def test_a_partition_that_overflows_is_an_error_not_a_loss() -> None:
    space = PartitionWorkspace(20)
    space.layout = dataclasses.replace(space.layout, room=space.layout.room // 8)
    with pytest.raises(GpupoolError, match="unevenly"):
        space.table_two(KEY, 5, 6)


def test_memory_is_bounded_at_every_size() -> None:
    """C7 keeps 80 MiB a thread, and nothing needs more."""
    for k in range(18, 41):
        for bits in range(1, most_dropped_bits(k) + 1):
            laid = layout(k, bits)
            assert laid.cell_bytes < 82 << 20
            assert laid.room < 1 << 16
            assert laid.rows << laid.span_bits < 1 << 32
            assert laid.passes * (laid.rows - 2) >= laid.partitions
    assert layout(32, 22).passes == 1
    assert layout(32, 24).passes == 4


def test_rows_end_in_different_sets_of_the_cache() -> None:
    for laid in itertools.starmap(layout, [(32, 16), (32, 20), (32, 22), (40, 24)]):
        assert isinstance(laid, Layout)
        assert laid.room * 8 % 128 == 64


def test_sides_may_come_in_either_order() -> None:
    space = new_workspace(16)
    one = [pairs(space, n, n + 500) for n in range(10)]
    assert [pairs(space, n + 500, n) for n in range(10)] == one
    assert any(one)


def entries(count: int, y: int) -> Entries:
    xs = np.repeat(np.arange(count, dtype=np.uint64)[:, None], 2, 1)
    return Entries(np.full(count, y, np.uint64), xs, xs)


def test_lists_with_more_matches_than_expected_are_joined_completely() -> None:
    """All of 40 entries match all of 40 others here, far beyond the first guess of 64 matches."""
    assert len(next_table(3, entries(40, 0), entries(40, GROUP_SIZE)).y) == 1600


def test_nothing_joins_with_nothing() -> None:
    assert len(next_table(3, entries(0, 0), entries(0, 0)).y) == 0
