"""What the recovery of proof bits asks of a GPU, whoever drives it: memory, copies, and kernels of one dimension.

A `Lane` is a queue of work with buffers of its own. Two lanes of one device overlap each other's copies and kernels.
Nothing here is safe for two threads at once; each takes its own lane.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Argument = Any
"""A buffer of the same lane, or a numpy scalar of the kernel's parameter type."""


class Lane(Protocol):
    """A queue of work on one device, with its buffers."""

    memory_bytes: int
    """Memory of the device."""
    largest_buffer: int
    """Bytes."""

    def free_bytes(self) -> int:
        """Return the memory that could be had now; all of the device's where its driver does not tell."""
        ...

    def buffer(self, size: int) -> Any:
        """Return a buffer of ``size`` bytes (> 0); raises DeviceMemoryError."""
        ...

    def release(self, buffer: Any) -> None:
        """Give a buffer back."""
        ...

    def write(self, buffer: Any, values: Array) -> None:
        """Copy to the buffer's beginning."""
        ...

    def fill(self, buffer: Any, word: int, size: int) -> None:
        """Set the first ``size`` bytes (a multiple of 4) to copies of a 32-bit word."""
        ...

    def launch(self, kernel: str, items: int, arguments: Sequence[Argument]) -> None:
        """Queue a kernel for at least ``items`` items: kernels must stand items beyond."""
        ...

    def read(self, buffer: Any, values: Array) -> None:
        """Wait for all queued work, then copy from the buffer's beginning; raises DeviceFaultError."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


@cache
def kernel_source() -> str:
    """Return the source of all kernels."""
    return files("gpupool.devices.recovery").joinpath("kernels.cl").read_text("utf-8")


def word(value: int) -> np.uint32:
    """Return a number as kernels take it."""
    return np.uint32(value)
