"""The engine on one card, and its self-test; made in a worker process of its own.

Verification is the CPU engine's, so a card with failing memory is found out by its first wrong answer.
"""

from gpupool.devices.recovery.cards import OpenCard
from gpupool.devices.recovery.decompressor import CardDecompressor
from gpupool.pos.decompressor import Decompressor
from gpupool.recompute.server.numba_engine import NumbaEngine, try_known_answers


class CardEngine(NumbaEngine):
    """Each calling thread has a lane of the card."""

    def __init__(self, card: OpenCard) -> None:
        super().__init__()
        self._card = card

    def new_decompressor(self) -> Decompressor:
        """Return a decompressor on a new lane."""
        return CardDecompressor(self._card)


def checked_engine(card_id: str) -> CardEngine:
    """Return an engine on the card that `devices.recovery.cards` calls ``card_id``, after it gave known answers.

    Raises SelfTestError, NotFoundError for a card that is gone, DeviceFaultError for one that fails.
    """
    engine = CardEngine(OpenCard(card_id))
    try_known_answers(engine, level=1)
    return engine
