"""Both joins find exactly the pairs that a plain search finds."""

from collections import defaultdict

import numpy as np
import pytest

from gpupool.core.errors import GpupoolError
from gpupool.pos.buckets import Bucket, expand
from gpupool.pos.chacha import plot_key
from gpupool.pos.compiling import Indices
from gpupool.pos.decompressor import Workspace
from gpupool.pos.filtered_join import filter_scratch, join_filtered
from gpupool.pos.parameters import GROUP_SIZE
from gpupool.pos.partitioned_join import join_partitioned, partition_scratch
from gpupool.pos.tables import Entries, concatenate, empty_entries, next_table
from gpupool.pos.verification import _matches

BITS = 16
KEY = plot_key(bytes(range(32)))
Rows = set[tuple[int, ...]]


def bucket(upper: int) -> Bucket:
    size = 1 << BITS
    return expand(KEY, upper, BITS, np.empty(size, np.uint32), np.empty(size, np.uint32))


def searched(a: Bucket, b: Bucket) -> Rows:
    """Every match by the verifier's own rule."""
    left, right = ([int(word) << 6 | int(side.top) for word in side.words.tolist()] for side in (a, b))
    by_group = defaultdict(list)
    for i, y in enumerate(left):
        by_group[y // GROUP_SIZE].append(i)
    found: Rows = set()
    for j, y in enumerate(right):
        group = y // GROUP_SIZE
        found |= {(i, j, 0) for i in by_group[group - 1] if _matches(left[i], y)}
        found |= {(i, j, 1) for i in by_group[group + 1] if _matches(y, left[i])}
    return found


def rows(matches: Indices, count: int) -> Rows:
    return {tuple(row) for row in matches[:count].tolist()}


@pytest.mark.parametrize(("upper_a", "upper_b"), [(1, 2), (40000, 3), (65535, 0), (7, 7), (1234, 4321)])
def test_both_joins_agree_with_a_search(upper_a: int, upper_b: int) -> None:
    a, b = bucket(upper_a), bucket(upper_b)
    matches = np.empty((200, 3), np.int32)
    filtered = rows(matches, join_filtered(a, b, filter_scratch(BITS), matches))
    partitioned = rows(matches, join_partitioned(a, b, partition_scratch(BITS), matches))
    assert filtered == partitioned == searched(a, b)


def test_enough_pairs_match_for_the_comparison_to_mean_something() -> None:
    assert sum(len(searched(bucket(n), bucket(n + 1))) for n in range(0, 16, 2)) > 4


def test_matches_that_do_not_fit_are_counted() -> None:
    a, b = bucket(1), bucket(2)
    all_of_them = searched(a, b)
    none = np.empty((0, 3), np.int32)
    assert join_filtered(a, b, filter_scratch(BITS), none) == len(all_of_them)
    assert join_partitioned(a, b, partition_scratch(BITS), none) == len(all_of_them)


def test_a_workspace_makes_room_for_many_matches() -> None:
    roomy, tight = Workspace(BITS), Workspace(BITS)
    tight.matches = np.empty((0, 3), np.int32)
    for upper in range(20):
        assert (
            tight.table_two(KEY, upper, upper + 100).xs.tolist()
            == roomy.table_two(KEY, upper, upper + 100).xs.tolist()
        )


def test_a_partition_that_overflows_is_an_error_not_a_loss() -> None:
    workspace = Workspace(20)
    small = partition_scratch(16)
    workspace.scratch = small
    with pytest.raises(GpupoolError, match="unevenly"):
        workspace.table_two(KEY, 5, 6)


def test_a_bucket_joined_with_itself_gives_each_match_once() -> None:
    found = concatenate([Workspace(BITS).table_two(KEY, upper, upper) for upper in range(30)]).xs.tolist()
    assert found
    assert len({tuple(pair) for pair in found}) == len(found)


def test_sides_may_come_in_either_order() -> None:
    workspace = Workspace(BITS)
    one = [workspace.table_two(KEY, n, n + 500).xs.tolist() for n in range(10)]
    other = [workspace.table_two(KEY, n + 500, n).xs.tolist() for n in range(10)]
    assert [sorted(rows) for rows in one] == [sorted(rows) for rows in other]
    assert any(one)


def test_lists_with_more_matches_than_expected_are_joined_completely() -> None:
    """All of 40 entries match all of 40 others here, far beyond the first guess of 64 matches."""
    left = empty_entries(40, 2)
    right = empty_entries(40, 2)
    left.y[:] = 0
    right.y[:] = GROUP_SIZE
    for side in (left, right):
        side.xs[:, 0] = side.xs[:, 1] = np.arange(40)
    assert len(next_table(3, left, right).y) == 1600


def test_nothing_joins_with_nothing() -> None:
    nothing = Entries(np.empty(0, np.uint64), np.empty((0, 4), np.uint32), np.empty((0, 2), np.uint32))
    assert len(next_table(3, nothing, nothing).y) == 0
