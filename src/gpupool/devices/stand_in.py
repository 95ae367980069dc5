"""Development mode: the CPU stands in for a number of GPUs of one model.

It lets the whole product run on a machine without a GPU: claims, placements and the embedded market see devices
with a model's numbers. Each one carries `stand_in_for`, so that nothing can show it as a real card.
"""

from pathlib import Path
from typing import Final

from gpupool.catalog import GpuModel
from gpupool.core.errors import InvalidInputError
from gpupool.devices import machine
from gpupool.devices.probe import DeviceFacts

MOST: Final = 10
"""As many as the validator takes on one server."""


class StandInProbe:
    """Makes up GPUs of a model out of this machine's CPU."""

    def __init__(self, model: GpuModel, count: int, root: Path = machine.ROOT) -> None:
        """Raise InvalidInputError unless ``count`` is from 1 to 10."""
        if not 1 <= count <= MOST:
            raise InvalidInputError(f"The CPU can stand in for 1 to {MOST} GPUs of a node, not {count}.")
        self._model = model
        self._count = count
        self._root = root

    def devices(self) -> tuple[DeviceFacts, ...]:
        """Return the stand-ins, each with a stable uuid."""
        machine_hash = machine.machine_hash(self._root)
        return tuple(self._facts(machine_hash, index) for index in range(self._count))

    def _facts(self, machine_hash: str, index: int) -> DeviceFacts:
        model = self._model
        return DeviceFacts(
            uuid=f"stand-in-{machine_hash}-{model.short_ref}-{index}",
            name=f"{model.display_name} (stand-in: this CPU)",
            vendor=model.vendor,
            index=index,
            memory_bytes=model.memory_gb * 10**9,
            source="stand-in",
            compute_capability=model.compute_capability,
            processors=model.processors,
            clock_khz=model.boost_mhz * 1000,
            stand_in_for=model.short_ref,
        )
