"""Tables 1 to 3 on a device: from four bucket numbers to the few entries of table 3 that stand on them.

Table 3 is where false matches die (of 300,000 matches of table 2 in a proof at level 7 some twenty are left), so only a
handful of bytes comes back from the card, and an x1 riser does not matter. Pairs are worked on in batches, which keeps
the memory in use within a budget: 12 bytes a value, 50 MB a pair at level 7.

More matches than there is room for are noticed by their count, and that batch is done again with enough room.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpupool.devices.recovery.errors import DeviceFaultError, DeviceMemoryError
from gpupool.devices.recovery.port import Lane, word
from gpupool.pos.chacha import plot_key
from gpupool.pos.parameters import EXTRA_BITS, K
from gpupool.pos.tables import Entries

Quad = tuple[int, int, int, int]
"""Upper bits of two pairs of x: first pair, second pair."""
LEAST_BITS: Final = 10
MOST_BITS: Final = K - EXTRA_BITS
_NOBODY: Final = 0xFFFFFFFF
_ITEMS_WANTED: Final = 1 << 17
"""Work-items that keep a large card busy."""
_ROOM_LIMIT: Final = 1 << 26


@dataclass(slots=True)
class _Space:
    """Buffers for so many quads of buckets of 2^bits values, with room for so many matches of each pair and quad."""

    quads: int
    asked: int
    """How many were wanted; fewer are there where memory is scarce."""
    bits: int
    room: int
    quad_room: int
    buffers: dict[str, Any]

    @property
    def head_bits(self) -> int:
        """Base-2 logarithm of the heads for the matches of a pair."""
        return _head_bits(self.room)

    def holds(self, asked: int, bits: int, room: int, quad_room: int) -> bool:
        """Tell whether work of this size fits as well as it would into new buffers."""
        fits = self.asked >= asked and self.room >= room and self.quad_room >= quad_room
        return fits and self.bits == bits


class QuadJoiner:
    """Finds table 3 entries on one lane of a device, using at most ``budget`` bytes of its memory.

    The budget is asked for whenever memory is about to be taken and none is held.
    """

    def __init__(self, lane: Lane, budget: Callable[[], int]) -> None:
        self._lane = lane
        self._budget = budget
        self._space: _Space | None = None

    def join(
        self, plot_id: bytes, bits: int, quads: Sequence[Quad], checkpoint: Callable[[], None] = lambda: None
    ) -> list[Entries]:
        """Return for each quad every entry of table 3 (y, metadata, four x in proof order) that stands on it.

        ``bits`` (10..26) low bits of each x are unknown. ``checkpoint`` is called between batches. Raises
        DeviceMemoryError where the budget does not hold one quad, DeviceFaultError, or what ``checkpoint`` raises.
        """
        found: list[Entries] = []
        room, quad_room = rooms(bits)
        busy = max(1, _ITEMS_WANTED // (2 << (bits - 4)))
        while len(found) < len(quads):
            checkpoint()
            try:
                space = self._take(min(busy, len(quads)), bits, room, quad_room)
                batch = quads[len(found) : len(found) + space.quads]
                most, quad_most, entries = self._batch(space, plot_key(plot_id), batch)
            except DeviceMemoryError:
                # Some drivers find out when a buffer is first used, so what was taken has holes.
                self.close()
                raise
            if most <= space.room and quad_most <= space.quad_room:
                found += entries
            else:
                room, quad_room = _grown(space.room, most), _grown(space.quad_room, quad_most)
        return found

    def close(self) -> None:
        """Give the device's memory back."""
        space, self._space = self._space, None
        if space is not None:
            for buffer in space.buffers.values():
                self._lane.release(buffer)

    def _take(self, asked: int, bits: int, room: int, quad_room: int) -> _Space:
        space = self._space
        if space is not None and space.holds(asked, bits, room, quad_room):
            return space
        self.close()
        quads = self._affordable(asked, bits, room, quad_room)
        self._space = space = _Space(quads, asked, bits, room, quad_room, {})
        for name, size in _sizes(quads, bits, room, quad_room).items():
            space.buffers[name] = self._lane.buffer(size)
        return space

    def _affordable(self, asked: int, bits: int, room: int, quad_room: int) -> int:
        """Return how many quads can be worked on at once, at most ``asked``."""
        budget = self._budget()
        for quads in range(asked, 0, -1):
            sizes = _sizes(quads, bits, room, quad_room).values()
            if sum(sizes) <= budget and max(sizes) <= self._lane.largest_buffer:
                return quads
        needed = sum(_sizes(1, bits, room, quad_room).values())
        raise DeviceMemoryError(
            f"Recovering {bits} bits takes {needed >> 20} MiB of a device; {budget >> 20} MiB may be used."
        )

    def _batch(self, space: _Space, key: Any, quads: Sequence[Quad]) -> tuple[int, int, list[Entries]]:
        """Return the most matches of a pair, the most entries of a quad, and the entries."""
        lane, at, bits, pairs = self._lane, space.buffers, word(space.bits), 2 * len(quads)
        lane.write(at["key"], key)
        lane.write(at["uppers"], np.array(quads, np.uint32))
        lane.fill(at["heads"], _NOBODY, 4 * pairs << space.bits)
        lane.fill(at["match_heads"], _NOBODY, 2 * pairs << space.head_bits)
        lane.fill(at["counts"], 0, 4 * pairs)
        lane.fill(at["quad_counts"], 0, 2 * pairs)
        blocks, table_one = pairs << (space.bits - 4), (at["words"], at["heads"], at["links"])
        lane.launch("hang_values", blocks, (at["key"], at["uppers"], bits, *table_one))
        room, matches = word(space.room), (at["counts"], at["found"])
        lane.launch("match_values", blocks, (at["key"], at["uppers"], bits, *table_one, room, *matches))
        counts = np.zeros(pairs, np.uint32)
        lane.read(at["counts"], counts)
        most = int(counts.max())
        if most > space.room:
            return most, 0, []
        hung = (at["y"], word(space.head_bits), at["match_heads"], at["match_links"])
        lane.launch("hang_matches", pairs * space.room, (at["key"], word(pairs), room, *matches, *hung))
        result = (word(space.quad_room), at["quad_counts"], at["quad_y"], at["quad_xs"])
        lane.launch("match_matches", len(quads) * space.room, (word(pairs), room, *matches, *hung, *result))
        quad_counts = np.zeros(len(quads), np.uint32)
        lane.read(at["quad_counts"], quad_counts)
        quad_most = int(quad_counts.max())
        if quad_most > space.quad_room:
            return most, quad_most, []
        return most, quad_most, self._entries(space, quad_counts)

    def _entries(self, space: _Space, counts: Any) -> list[Entries]:
        y = np.zeros((len(counts), space.quad_room), np.uint64)
        xs = np.zeros((len(counts), space.quad_room, 4), np.uint32)
        if counts.any():
            self._lane.read(space.buffers["quad_y"], y)
            self._lane.read(space.buffers["quad_xs"], xs)
        # In table 3 the metadata is the four x themselves.
        return [
            Entries(y[i, :count].copy(), xs[i, :count].astype(np.uint64), xs[i, :count].astype(np.uint64))
            for i, count in enumerate(counts.tolist())
        ]


def rooms(bits: int) -> tuple[int, int]:
    """Return how many matches of a pair, and entries of a quad, to make room for: four times as many as expected."""
    return 64 + (4 << max(0, 2 * bits - 31)), 16 + (4 << max(0, 4 * bits - 93))


def _sizes(quads: int, bits: int, room: int, quad_room: int) -> dict[str, int]:
    """Return the bytes of each buffer."""
    pairs = 2 * quads
    return {
        "key": 32,
        "uppers": 8 * pairs,
        **dict.fromkeys(("words", "heads", "links"), 4 * pairs << bits),
        "counts": 4 * pairs,
        **dict.fromkeys(("found", "y"), 8 * pairs * room),
        "match_heads": 2 * pairs << _head_bits(room),
        "match_links": 4 * pairs * room,
        "quad_counts": 2 * pairs,
        "quad_y": 4 * pairs * quad_room,
        "quad_xs": 8 * pairs * quad_room,
    }


def _head_bits(room: int) -> int:
    return max(6, room.bit_length() - 1)


def _grown(room: int, needed: int) -> int:
    if needed <= room:
        return room
    if needed > _ROOM_LIMIT:
        raise DeviceFaultError(f"A device counts {needed} matches, which cannot be.")
    return 2 * needed
