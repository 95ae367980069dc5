"""Lanes through CUDA: kernels compiled for the very card, a stream each, and the card's primary context.

Every call first makes the context current, so that a lane may be made in one thread and used in another.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpupool.devices.recovery.cuda_driver import Address, CudaDriver, Handle
from gpupool.devices.recovery.nvrtc import compile_cubin, generation_for
from gpupool.devices.recovery.port import Argument, Array, kernel_source

_THREADS: Final = 128
_CAPABILITY: Final = (75, 76)
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR."""
_PROCESSORS, _CLOCK_KHZ = 16, 13
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, _CLOCK_RATE."""
_NON_BLOCKING: Final = 1
_KERNELS: Final = ("hang_values", "match_values", "hang_matches", "match_matches")


@dataclass(frozen=True, slots=True)
class CudaCard:
    """A card as CUDA names it."""

    index: int
    name: str
    pci_address: str
    capability: tuple[int, int]
    memory_bytes: int
    speed: int
    """Multiprocessors times MHz."""


def cards(driver: CudaDriver) -> list[CudaCard]:
    """Return all cards in CUDA's order; raises DeviceFaultError."""
    return [_card(driver, index) for index in range(driver.number("cuDeviceGetCount"))]


def _card(driver: CudaDriver, index: int) -> CudaCard:
    device = driver.number("cuDeviceGet", index)
    name, address, memory = (
        ctypes.create_string_buffer(256),
        ctypes.create_string_buffer(32),
        ctypes.c_size_t(),
    )
    driver.call("cuDeviceGetName", name, len(name), device)
    driver.call("cuDeviceGetPCIBusId", address, len(address), device)
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    major, minor, processors, clock_khz = (
        driver.number("cuDeviceGetAttribute", attribute, device)
        for attribute in (*_CAPABILITY, _PROCESSORS, _CLOCK_KHZ)
    )
    return CudaCard(
        index,
        name.value.decode(errors="replace"),
        address.value.decode().lower(),
        (major, minor),
        memory.value,
        processors * clock_khz // 1000,
    )


class CudaProgram:
    """The kernels on one card, shared by its lanes; closed after the last of them."""

    def __init__(self, driver: CudaDriver, card: CudaCard) -> None:
        """Compile and load; raises DeviceFaultError, CompilerMissingError."""
        self.driver, self.card = driver, card
        generation = generation_for(card.capability, driver.number("cuDriverGetVersion"))
        code, _ = compile_cubin(kernel_source(), card.capability, generation)
        self._device = driver.number("cuDeviceGet", card.index)
        self.context = driver.handle("cuDevicePrimaryCtxRetain", self._device)
        driver.call("cuCtxSetCurrent", self.context)
        self._module = driver.handle("cuModuleLoadData", code)
        self.kernels = {
            name: driver.handle("cuModuleGetFunction", self._module, name.encode()) for name in _KERNELS
        }

    def close(self) -> None:
        """Unload."""
        self.driver.call("cuCtxSetCurrent", self.context)
        self.driver.call("cuModuleUnload", self._module)
        self.driver.call("cuDevicePrimaryCtxRelease_v2", self._device)


class CudaLane:
    """A stream on one card."""

    def __init__(self, program: CudaProgram) -> None:
        self._program, self._driver = program, program.driver
        self.memory_bytes = self.largest_buffer = program.card.memory_bytes
        self._here()
        self._stream = self._driver.handle("cuStreamCreate", _NON_BLOCKING)

    def free_bytes(self) -> int:
        """Return what no program holds now."""
        self._here()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def buffer(self, size: int) -> Any:
        """Return the device address of ``size`` bytes; see `Lane.buffer`."""
        self._here()
        address = Address()
        self._driver.call("cuMemAlloc_v2", ctypes.byref(address), size)
        return address

    def release(self, buffer: Any) -> None:
        """Give a buffer back."""
        self._here()
        self._driver.call("cuMemFree_v2", buffer)

    def write(self, buffer: Any, values: Array) -> None:
        """Copy to a buffer."""
        self._here()
        packed = np.ascontiguousarray(values)
        self._driver.call("cuMemcpyHtoDAsync_v2", buffer, packed.ctypes.data, packed.nbytes, self._stream)
        self._driver.call("cuStreamSynchronize", self._stream)

    def fill(self, buffer: Any, value: int, size: int) -> None:
        """Set words of a buffer."""
        self._here()
        self._driver.call("cuMemsetD32Async", buffer, value, size // 4, self._stream)

    def launch(self, kernel: str, items: int, arguments: Sequence[Argument]) -> None:
        """Queue a kernel."""
        self._here()
        held = [value if isinstance(value, Address) else ctypes.c_uint(int(value)) for value in arguments]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        blocks, shared_bytes = -(-items // _THREADS), 0
        function = self._program.kernels[kernel]
        shape = (blocks, 1, 1, _THREADS, 1, 1)
        self._driver.call("cuLaunchKernel", function, *shape, shared_bytes, self._stream, pointers, None)

    def read(self, buffer: Any, values: Array) -> None:
        """Wait, then copy from a buffer."""
        self._here()
        self._driver.call("cuMemcpyDtoHAsync_v2", values.ctypes.data, buffer, values.nbytes, self._stream)
        self._driver.call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Wait for what is queued and end the stream."""
        self._here()
        self._driver.call("cuStreamSynchronize", self._stream)
        self._driver.call("cuStreamDestroy_v2", self._stream)

    def _here(self) -> None:
        context: Handle = self._program.context
        self._driver.call("cuCtxSetCurrent", context)
