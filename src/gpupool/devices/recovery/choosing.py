"""Which of the cards found are used: pure, so that a server decides without loading a driver or numpy.

A card may show in CUDA and in OpenCL; it is used once, through CUDA. Indexes count the cards of one maker from 0, in
the order of CUDA and of OpenCL's platforms, as the original program counts them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Maker = Literal["CUDA", "OpenCL"]
MAKERS: Final[tuple[Maker, ...]] = ("CUDA", "OpenCL")


@dataclass(frozen=True, slots=True)
class Card:
    """One card under one maker."""

    maker: Maker
    index: int
    name: str
    memory_bytes: int
    pci_address: str | None
    speed: int
    """Processors times MHz: compares cards of one maker and generation, no more."""
    fault: str | None = None
    """Why this maker cannot drive it on this machine, in words; None where it can."""

    @property
    def id(self) -> str:
        """The name under which a worker opens it."""
        return f"{self.maker}:{self.index}"


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked of one maker's cards."""

    limit: int | None = None
    """Most of them, the fastest first; None means all, 0 none."""
    indexes: tuple[int, ...] = ()
    """These and no others; beats ``limit``."""


def choose(found: Iterable[Card], cuda: Wish, opencl: Wish) -> list[Card]:
    """Return the cards to use, each once, CUDA's first.

    A card that CUDA cannot drive is left to OpenCL, unless its index in CUDA was asked for.
    """
    listed = [card for card in found if card.fault is None or card.index in _listed(card.maker, cuda, opencl)]
    chosen = _fastest([card for card in listed if card.maker == "CUDA"], cuda)
    taken = {card.pci_address for card in chosen if card.pci_address}
    others = [card for card in listed if card.maker == "OpenCL" and card.pci_address not in taken]
    return chosen + _fastest(others, opencl)


def _listed(maker: Maker, cuda: Wish, opencl: Wish) -> tuple[int, ...]:
    return (cuda if maker == "CUDA" else opencl).indexes


def _fastest(found: Sequence[Card], wish: Wish) -> list[Card]:
    if wish.indexes:
        return [card for card in found if card.index in wish.indexes]
    ranked = sorted(found, key=lambda card: (-card.speed, card.index))
    kept = set(ranked if wish.limit is None else ranked[: wish.limit])
    return [card for card in found if card in kept]
