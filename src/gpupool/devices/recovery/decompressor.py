"""Recovering proofs with a card: tables 1 to 3 there, the rest as the CPU does it.

Whatever a card returns goes through the same choice and the same verification as an answer of the CPU.
"""

from collections.abc import Sequence
from itertools import product
from typing import Final

from gpupool.core.errors import UnsupportedError
from gpupool.devices.recovery.cards import OpenCard
from gpupool.devices.recovery.quads import Quad, QuadJoiner
from gpupool.pos.decompressor import Decompressor
from gpupool.pos.line_points import readings
from gpupool.pos.pairs import Checkpoint
from gpupool.pos.parameters import K
from gpupool.pos.tables import Entries, concatenate, join_upwards

_SHARE_OF_MEMORY: Final = 3
"""A lane takes up to this part of what is free: two lanes leave a third to whatever else comes to run there."""
_MOST_BUDGET: Final = 2 << 30


class CardDecompressor(Decompressor):
    """A `Decompressor` on one lane of a card. Not for two threads at once."""

    def __init__(self, card: OpenCard) -> None:
        """Raises DeviceFaultError where the card cannot be used."""
        super().__init__()
        self._lane = card.lane()
        self._joiner = QuadJoiner(self._lane, self._budget)

    def _budget(self) -> int:
        """Return the bytes that may be taken now, while nothing of this lane is held."""
        return min(self._lane.free_bytes() // _SHARE_OF_MEMORY, _MOST_BUDGET)

    def close(self) -> None:
        """Give the card's memory back."""
        self._joiner.close()
        self._lane.close()

    def _climb(
        self, plot_id: bytes, bits: int, line_points: Sequence[int], checkpoint: Checkpoint, k: int
    ) -> Entries:
        if k != K:
            raise UnsupportedError(
                f"Plots of k={k} are not supported by cards.", remedy=f"Use plots of k={K}."
            )
        choices = [readings(line_point, 1 << (K - bits)) for line_point in line_points]
        quads: list[Quad] = []
        owners: list[int] = []
        for i in range(0, len(choices), 2):
            for first, second in product(choices[i], choices[i + 1]):
                quads.append((*first, *second))
                owners.append(i // 2)
        found = self._joiner.join(plot_id, bits, quads, checkpoint)
        lists = [
            concatenate([entries for entries, owner in zip(found, owners, strict=True) if owner == i])
            for i in range(len(choices) // 2)
        ]
        return join_upwards(4, lists)
