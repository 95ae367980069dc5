"""Which cards of this machine recover proof bits, and in what order they are counted.

A card may show in CUDA and in OpenCL; it is used once, through CUDA. Indexes count the cards of one maker from 0, in
the order of CUDA and of OpenCL's platforms, as the original program counts them. Drivers are loaded here, and drivers
crash, so a server has a process of its own look (`python -m gpupool.devices.recovery.cards`).
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from gpupool.core.errors import NotFoundError
from gpupool.devices.opencl import TYPE_CPU, TYPE_GPU, OpenClProbe
from gpupool.devices.recovery.cuda_driver import CudaDriver, load_driver
from gpupool.devices.recovery.cuda_lane import CudaLane, CudaProgram, cards
from gpupool.devices.recovery.opencl_lane import OpenClLane
from gpupool.devices.recovery.port import Lane

Maker = Literal["CUDA", "OpenCL"]
CPU_AS_CARD: Final = "GPUPOOL_OPENCL_CPU_AS_CARD"
"""Development mode: set to 1, OpenCL devices that are CPUs count as cards."""


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

    @property
    def id(self) -> str:
        """The name under which `open_lanes` finds it."""
        return f"{self.maker}:{self.index}"


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked of one maker's cards."""

    limit: int | None = None
    """Most of them, the fastest first; None means all, 0 none."""
    indexes: tuple[int, ...] = ()
    """These and no others; beats ``limit``."""


def choose(found: Iterable[Card], cuda: Wish, opencl: Wish) -> list[Card]:
    """Return the cards to use, each once, CUDA's first."""
    listed = list(found)
    chosen = _fastest([card for card in listed if card.maker == "CUDA"], cuda)
    taken = {card.pci_address for card in chosen if card.pci_address}
    others = [card for card in listed if card.maker == "OpenCL" and card.pci_address not in taken]
    return chosen + _fastest(others, opencl)


def _fastest(found: Sequence[Card], wish: Wish) -> list[Card]:
    if wish.indexes:
        return [card for card in found if card.index in wish.indexes]
    ranked = sorted(found, key=lambda card: (-card.speed, card.index))
    kept = set(ranked if wish.limit is None else ranked[: wish.limit])
    return [card for card in found if card in kept]


def find_cards(driver: CudaDriver | None = None) -> list[Card]:
    """Return every card of this machine under every maker that shows it; loads drivers, may take a second."""
    driver = driver or load_driver()
    found = [] if driver is None else cards(driver)
    listed = [
        Card("CUDA", card.index, card.name, card.memory_bytes, card.pci_address, card.speed) for card in found
    ]
    for index, (facts, _) in enumerate(_opencl().handles()):
        speed = (facts.processors or 0) * (facts.clock_khz or 0) // 1000
        listed.append(Card("OpenCL", index, facts.name, facts.memory_bytes, facts.pci_address, speed))
    return listed


class OpenCard:
    """A card in use by this process; makes lanes."""

    def __init__(self, card_id: str, driver: CudaDriver | None = None) -> None:
        """Raises NotFoundError for a card that is not there, DeviceFaultError for one that cannot be used."""
        maker, _, index = card_id.partition(":")
        self._program: CudaProgram | None = None
        self._device: Any = None
        if maker == "CUDA":
            driver = driver or load_driver()
            found = [] if driver is None else cards(driver)
            if driver is not None and int(index) < len(found):
                self._program = CudaProgram(driver, found[int(index)])
                self.name = found[int(index)].name
                return
        else:
            handles = _opencl().handles()
            if int(index) < len(handles):
                facts, self._device = handles[int(index)]
                self.name = facts.name
                return
        raise NotFoundError(
            f"The card {card_id} is not there.",
            remedy="Look at the driver and its log; a card may have dropped off.",
        )

    def lane(self) -> Lane:
        """Return a new lane."""
        return OpenClLane(self._device) if self._program is None else CudaLane(self._program)


def _opencl() -> OpenClProbe:
    return OpenClProbe(device_type=TYPE_CPU if os.environ.get(CPU_AS_CARD) == "1" else TYPE_GPU)


def main() -> None:
    """Print the cards as JSON."""
    json.dump([asdict(card) for card in find_cards()], sys.stdout)


if __name__ == "__main__":
    main()
