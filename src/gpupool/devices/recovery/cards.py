"""Finding and opening the cards of this machine that recover proof bits.

Drivers are loaded here, and drivers crash, so a server has a process of its own look, one for each maker
(`python -m gpupool.devices.recovery.cards CUDA`): a bad OpenCL driver costs no CUDA card.
"""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from gpupool.core.errors import NotFoundError
from gpupool.devices.opencl import TYPE_CPU, TYPE_GPU, OpenClProbe
from gpupool.devices.recovery.choosing import MAKERS, Card, Maker
from gpupool.devices.recovery.cuda_driver import CudaDriver, load_driver
from gpupool.devices.recovery.cuda_lane import CudaLane, CudaProgram, cards
from gpupool.devices.recovery.nvrtc import obstacle
from gpupool.devices.recovery.opencl_lane import OpenClLane
from gpupool.devices.recovery.port import Lane

CPU_AS_CARD: Final = "GPUPOOL_OPENCL_CPU_AS_CARD"
"""Development mode: set to 1, OpenCL devices that are CPUs count as cards."""


def find_cards(driver: CudaDriver | None = None, makers: Iterable[Maker] = MAKERS) -> list[Card]:
    """Return every card of this machine under each of ``makers`` that shows it; loads drivers, may take a second."""
    return [card for maker in makers for card in (_cuda(driver) if maker == "CUDA" else _opencl_cards())]


def _cuda(driver: CudaDriver | None) -> list[Card]:
    driver = driver or load_driver()
    if driver is None:
        return []
    version = driver.number("cuDriverGetVersion")
    return [
        Card(
            "CUDA",
            card.index,
            card.name,
            card.memory_bytes,
            card.pci_address,
            card.speed,
            obstacle(card.capability, version),
        )
        for card in cards(driver)
    ]


def _opencl_cards() -> list[Card]:
    listed = []
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
    """Print the cards of the makers that are named (all where none is) as JSON, and nothing else."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what drivers print belongs to the log
        named = [maker for maker in MAKERS if maker in sys.argv[1:]] or MAKERS
        json.dump([asdict(card) for card in find_cards(makers=named)], answer)


if __name__ == "__main__":
    main()
