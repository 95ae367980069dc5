"""Recovering what a compressed plot left out: the engine behind full proofs and quality look-ups.

The dropped bits of a pair can be found because the two buckets that the line point names hold very few values that
match each other. The survivors of neighbouring pairs are joined table by table; almost every false one dies within
one or two tables. In a full proof f7, which must begin as the challenge does, decides the rest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpupool.core.errors import GpupoolError, InvalidInputError
from gpupool.pos.buckets import Bucket, expand, pick_values
from gpupool.pos.chacha import plot_key
from gpupool.pos.compiling import Indices, Words
from gpupool.pos.errors import AmbiguousProofError, NoProofError
from gpupool.pos.filtered_join import FilterScratch, filter_scratch, join_filtered
from gpupool.pos.line_points import line_point_limit, readings
from gpupool.pos.parameters import EXTRA_BITS, LAST_TABLE, PAIR_COUNT, K, level_of
from gpupool.pos.partitioned_join import PartitionScratch, join_partitioned, partition_scratch
from gpupool.pos.quality import choose_pair
from gpupool.pos.tables import Entries, combined, concatenate, empty_entries, next_table

Checkpoint = Callable[[], None]
"""Called between units of work (1 to 30 ms each); stops the work by raising."""

PARTITIONED_FROM = 18
"""Dropped bits from which on the partitioned join is the faster one."""


@dataclass(frozen=True, slots=True)
class RecoveredQuality:
    """The answer to a quality look-up."""

    pair: tuple[int, int]
    """The x that the challenge picks: smaller, larger."""
    chain: tuple[int, ...]
    """The four x of the entry of table 3 it was picked from, in proof order, so that it can be verified."""


class Workspace:
    """Memory to join two buckets of 2^bits values; about 3 MiB at 16 bits, 30 MiB at 20."""

    def __init__(self, bits: int) -> None:
        size = 1 << bits
        self.bits = bits
        self.words = np.empty((2, size), np.uint32)
        partitioned = bits >= PARTITIONED_FROM
        self.groups = np.empty((2, 0 if partitioned else size), np.uint32)
        self.scratch: FilterScratch | PartitionScratch = (
            partition_scratch(bits) if partitioned else filter_scratch(bits)
        )
        self.matches = np.empty((64 + (4 << max(0, 2 * bits - 31)), 3), np.int32)

    def table_two(self, key: Words, upper_a: int, upper_b: int) -> Entries:
        """Return every table 2 entry with one x in bucket ``upper_a`` and the other in ``upper_b``."""
        a = expand(key, upper_a, self.bits, self.words[0], self.groups[0])
        same = upper_a == upper_b
        b = a if same else expand(key, upper_b, self.bits, self.words[1], self.groups[1])
        matches = self._join(a, b)
        if same:
            # Joined with itself a bucket gives each match twice, once from either side.
            matches = matches[matches[:, 2] == 0]
        count = len(matches)
        left, right = empty_entries(count, 1), empty_entries(count, 1)
        pick_values(a, np.ascontiguousarray(matches[:, 0]), *left)
        pick_values(b, np.ascontiguousarray(matches[:, 1]), *right)
        rows = matches.copy()
        rows[:, 0] = rows[:, 1] = np.arange(count, dtype=np.int32)
        return combined(2, rows, left, right)

    def _join(self, a: Bucket, b: Bucket) -> Indices:
        while True:
            if isinstance(self.scratch, PartitionScratch):
                count = join_partitioned(a, b, self.scratch, self.matches)
            else:
                count = join_filtered(a, b, self.scratch, self.matches)
            if count < 0:
                raise GpupoolError("The values of a bucket are spread too unevenly to be joined.")
            if count <= len(self.matches):
                return self.matches[:count]
            self.matches = np.empty((2 * count, 3), np.int32)


class Decompressor:
    """Recovers proofs and qualities of k=32 plots. Not for two threads at once: each takes its own.

    The memory of the last level used is kept, since a farm's plots mostly have one level.
    """

    def __init__(self) -> None:
        self._workspace: Workspace | None = None

    def recover_proof(
        self,
        plot_id: bytes,
        bits: int,
        line_points: Sequence[int],
        challenge: bytes | None = None,
        checkpoint: Checkpoint = lambda: None,
    ) -> tuple[int, ...]:
        """Return the 64 x of a proof in proof order.

        ``plot_id`` and ``challenge`` have 32 bytes; ``bits`` (16..20) low bits are missing in each x; there are 32
        ``line_points`` of the upper bits of its pairs. Without a challenge the tables alone have to single it out.
        Raises InvalidInputError, NoProofError, AmbiguousProofError, or whatever ``checkpoint`` raises.
        """
        if len(line_points) != PAIR_COUNT:
            raise InvalidInputError(f"A proof has {PAIR_COUNT} line points, {len(line_points)} were given.")
        entries = self._climb(plot_id, bits, line_points, checkpoint)
        xs = entries.xs
        if challenge is not None:
            f7 = int.from_bytes(challenge[: K // 8], "big")
            xs = xs[entries.y >> np.uint64(EXTRA_BITS) == f7]
        return _only_one(xs)

    def recover_quality(
        self,
        plot_id: bytes,
        bits: int,
        line_points: Sequence[int],
        challenge: bytes,
        checkpoint: Checkpoint = lambda: None,
    ) -> RecoveredQuality:
        """Return the two x that ``challenge`` picks below the first of one or two line points of line points.

        The second one, its sibling, costs as much again and is used only where the first leaves a doubt.
        Errors as for `recover_proof`.
        """
        if len(line_points) not in {1, 2}:
            raise InvalidInputError(
                f"A quality look-up has 1 or 2 line points, {len(line_points)} were given."
            )
        limit = line_point_limit(1 << (K - bits))
        lists = []
        for line_point in line_points:
            pairs = readings(line_point, limit)
            lists.append(concatenate([self._climb(plot_id, bits, pair, checkpoint) for pair in pairs]))
            if len(lists[0].xs) <= 1:
                break
        xs = lists[0].xs
        if len(lists) > 1:
            parents = next_table(4, lists[0], lists[1]).xs
            below_first = {tuple(row) for row in xs.tolist()}
            halves = [half for row in parents.tolist() for half in (tuple(row[:4]), tuple(row[4:]))]
            xs = np.array([half for half in halves if half in below_first], np.uint32).reshape(-1, 4)
        chain = _only_one(xs)
        return RecoveredQuality(choose_pair(chain, challenge), chain)

    def _climb(
        self, plot_id: bytes, bits: int, line_points: Sequence[int], checkpoint: Checkpoint
    ) -> Entries:
        """Return the entries that stand on all the given pairs (a power of two of them)."""
        workspace, key = self._space(bits), plot_key(plot_id)
        # Read all before the first is worked on: bad input costs nothing.
        choices = [readings(line_point, 1 << (K - bits)) for line_point in line_points]
        lists = []
        for pairs in choices:
            checkpoint()
            lists.append(concatenate([workspace.table_two(key, *pair) for pair in pairs]))
        for table in range(3, LAST_TABLE + 1):
            if len(lists) == 1:
                break
            lists = [next_table(table, lists[i], lists[i + 1]) for i in range(0, len(lists), 2)]
        return lists[0]

    def _space(self, bits: int) -> Workspace:
        if self._workspace is None or self._workspace.bits != bits:
            level_of(bits)
            self._workspace = None
            self._workspace = Workspace(bits)
        return self._workspace


def _only_one(xs: Words) -> tuple[int, ...]:
    """Return the one distinct row; raises NoProofError or AmbiguousProofError where there is none or another."""
    found = sorted({tuple(row) for row in xs.tolist()})
    if not found:
        raise NoProofError
    if len(found) > 1:
        raise AmbiguousProofError(
            f"{len(found)} proofs fit these line points, and nothing tells which one the plot holds."
        )
    return found[0]
