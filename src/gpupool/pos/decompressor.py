"""Recovering what a compressed plot left out: the engine behind full proofs and quality look-ups.

The dropped bits of a pair can be found because the two buckets that the line point names hold very few values that
match each other. The survivors of neighbouring pairs are joined table by table; almost every false one dies within
one or two tables. In a full proof f7, which must begin as the challenge does, decides the rest.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from gpupool.core.errors import InvalidInputError
from gpupool.pos.chacha import plot_key
from gpupool.pos.compiling import LongWords
from gpupool.pos.crew import Crew
from gpupool.pos.errors import AmbiguousProofError, NoProofError
from gpupool.pos.line_points import line_point_limit, readings
from gpupool.pos.pairs import Checkpoint, Workspace, go_on, new_workspace
from gpupool.pos.parameters import EXTRA_BITS, PAIR_COUNT, K, check_dropped_bits
from gpupool.pos.quality import choose_pair
from gpupool.pos.tables import Entries, concatenate, join_upwards, next_table


@dataclass(frozen=True, slots=True)
class RecoveredQuality:
    """The answer to a quality look-up."""

    pair: tuple[int, int]
    """The x that the challenge picks: smaller, larger."""
    chain: tuple[int, ...]
    """The four x of the entry of table 3 it was picked from, in proof order, so that it can be verified."""


class Decompressor:
    """Recovers proofs and qualities; for any number of threads, of which idle ones help (see `Crew`).

    Memory of the last level used is kept, since a farm's plots mostly have one level: one `Workspace` for each of
    the threads that work at once.
    """

    def __init__(self, threads: int = 1) -> None:
        self._crew = Crew(threads)
        self._threads = threads
        self._lock = threading.Lock()
        self._idle: list[Workspace] = []

    def close(self) -> None:
        """Let helping threads end and give memory back; what is at work ends first."""
        self._crew.close()
        self._idle.clear()

    def recover_proof(
        self,
        plot_id: bytes,
        bits: int,
        line_points: Sequence[int],
        challenge: bytes | None = None,
        checkpoint: Checkpoint = go_on,
        k: int = K,
    ) -> tuple[int, ...]:
        """Return the 64 x of ``k`` bits of a proof in proof order.

        ``plot_id`` and ``challenge`` have 32 bytes; ``bits`` (1..24, see `most_dropped_bits`) low bits are missing in
        each x; there are 32 ``line_points`` of the upper bits of its pairs. ``checkpoint``
        is called from each thread. Without a challenge the tables alone have to single it out.
        Raises InvalidInputError, NoProofError, AmbiguousProofError, or whatever ``checkpoint`` raises.
        """
        if len(line_points) != PAIR_COUNT:
            raise InvalidInputError(f"A proof has {PAIR_COUNT} line points, {len(line_points)} were given.")
        check_dropped_bits(k, bits)
        entries = self._climb(plot_id, bits, line_points, checkpoint, k)
        xs = entries.xs
        if challenge is not None:
            f7 = int.from_bytes(challenge, "big") >> (8 * len(challenge) - k)
            xs = xs[entries.y >> np.uint64(EXTRA_BITS) == f7]
        return _only_one(xs)

    def recover_quality(
        self,
        plot_id: bytes,
        bits: int,
        line_points: Sequence[int],
        challenge: bytes,
        checkpoint: Checkpoint = go_on,
        k: int = K,
    ) -> RecoveredQuality:
        """Return the two x that ``challenge`` picks below the first of one or two line points of line points.

        The second one, its sibling, costs as much again and is used only where the first leaves a doubt.
        Errors as for `recover_proof`.
        """
        if len(line_points) not in {1, 2}:
            raise InvalidInputError(
                f"A quality look-up has 1 or 2 line points, {len(line_points)} were given."
            )
        check_dropped_bits(k, bits)
        limit = line_point_limit(1 << (k - bits))
        lists = []
        for line_point in line_points:
            pairs = readings(line_point, limit)
            lists.append(concatenate([self._climb(plot_id, bits, pair, checkpoint, k) for pair in pairs]))
            if len(lists[0].xs) <= 1:
                break
        xs = lists[0].xs
        if len(lists) > 1:
            parents = next_table(4, lists[0], lists[1], k).xs
            below_first = {tuple(row) for row in xs.tolist()}
            halves = [half for row in parents.tolist() for half in (tuple(row[:4]), tuple(row[4:]))]
            xs = np.array([half for half in halves if half in below_first], np.uint64).reshape(-1, 4)
        chain = _only_one(xs)
        return RecoveredQuality(choose_pair(chain, challenge), chain)

    def _climb(
        self, plot_id: bytes, bits: int, line_points: Sequence[int], checkpoint: Checkpoint, k: int
    ) -> Entries:
        """Return the entries that stand on all the given pairs (a power of two of them)."""
        key = plot_key(plot_id)
        # Read all before the first is worked on: bad input costs nothing.
        choices = [readings(line_point, 1 << (k - bits)) for line_point in line_points]

        def pair(pairs: list[tuple[int, int]]) -> Entries:
            with self._space(bits, k) as space:
                return concatenate([space.table_two(key, *one, checkpoint) for one in pairs])

        def two_pairs(first: int) -> Entries:
            return next_table(3, pair(choices[first]), pair(choices[first + 1]), k)

        # Lists of table 2 are long, so most are joined where they were made. A quality has no other work to share.
        if len(choices) <= 2:
            return join_upwards(3, self._crew.run(pair, choices), k)
        return join_upwards(4, self._crew.run(two_pairs, range(0, len(choices), 2)), k)

    @contextmanager
    def _space(self, bits: int, k: int) -> Iterator[Workspace]:
        with self._lock:
            space = self._idle.pop() if self._idle else None
        if space is None or (space.bits, space.k) != (bits, k):
            space = None  # first let go of the old memory
            space = new_workspace(bits, k)
        try:
            yield space
        finally:
            with self._lock:
                if len(self._idle) < self._threads:
                    self._idle.append(space)


def _only_one(xs: LongWords) -> tuple[int, ...]:
    """Return the one distinct row; raises NoProofError or AmbiguousProofError where there is none or another."""
    found = sorted({tuple(row) for row in xs.tolist()})
    if not found:
        raise NoProofError
    if len(found) > 1:
        raise AmbiguousProofError(
            f"{len(found)} proofs fit these line points, and nothing tells which one the plot holds."
        )
    return found[0]
