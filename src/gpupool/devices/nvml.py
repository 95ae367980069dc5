"""NVIDIA cards through NVML, the library that comes with the driver.

NVML is cheap to ask (no CUDA context, a few milliseconds) and needs no more than the driver. Two of its numbers
need care. It counts CUDA cores, not streaming multiprocessors, so the count is divided by the cores per
multiprocessor of the architecture, and left unknown where that does not come out even. And its highest SM clock is
the driver's ceiling, on many cards above the rated boost clock that CUDA, OpenCL and validators read, so it is
marked as a ceiling.
"""

import ctypes
import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar, cast

from gpupool.devices.probe import DeviceFacts, pci_text

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

DRIVER_LIBRARY: Final = "libnvidia-ml.so.1"
CLOCK_SM: Final = 1
"""NVML's number of the SM clock domain."""
_CORES_PER_SM: Final = {
    **dict.fromkeys([(5, 0), (5, 2), (5, 3), (6, 1), (6, 2)], 128),
    **dict.fromkeys([(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)], 64),
    **dict.fromkeys([(8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)], 128),
}
"""CUDA cores (FP32 lanes) per streaming multiprocessor by compute capability."""


class NvmlMemory(Protocol):
    """NVML's memory record."""

    total: int


class NvmlPci(Protocol):
    """NVML's PCI record."""

    domain: int
    bus: int
    device: int


class NvmlLibrary(Protocol):
    """The part of the ``pynvml`` module that is used; the package itself carries no types.

    Every function may raise ``NVMLError``.
    """

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetName(self, handle: Any) -> str: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> NvmlMemory: ...
    def nvmlDeviceGetPciInfo(self, handle: Any) -> NvmlPci: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]: ...
    def nvmlDeviceGetNumGpuCores(self, handle: Any) -> int: ...
    def nvmlDeviceGetMaxClockInfo(self, handle: Any, domain: int) -> int: ...
    def nvmlDeviceGetCurrentEccMode(self, handle: Any) -> int: ...
    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]: ...


def load_nvml() -> NvmlLibrary | None:
    """Return the bindings of the driver's library, or None where there is no driver.

    The library is looked for first: importing the bindings takes a tenth of a second.
    """
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return None
    return cast(NvmlLibrary, import_module("pynvml"))


def processors_of(cores: int | None, capability: tuple[int, int] | None) -> int | None:
    """Return the streaming multiprocessors behind a number of CUDA cores, or None where it can't be told."""
    per_processor = _CORES_PER_SM.get(capability) if capability else None
    if not cores or not per_processor or cores % per_processor:
        return None
    return cores // per_processor


class NvmlProbe:
    """Finds NVIDIA cards; no driver or no card is simply no device."""

    def __init__(self, load: Callable[[], NvmlLibrary | None] = load_nvml) -> None:
        self._load = load

    def devices(self) -> tuple[DeviceFacts, ...]:
        """Return the NVIDIA cards in PCI bus order. A card that fails to answer is left out and logged."""
        library = self._load()
        if library is None:
            return ()
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            _log.debug("nvml.absent reason=%s", error)
            return ()
        try:
            return _Reader(library).devices()
        except library.NVMLError as error:
            _log.warning("nvml.unreadable reason=%s", error)
            return ()
        finally:
            self._shut_down(library)

    @staticmethod
    def _shut_down(library: NvmlLibrary) -> None:
        try:
            library.nvmlShutdown()
        except library.NVMLError as error:
            _log.warning("nvml.shutdown_failed reason=%s", error)


class _Reader:
    """Reads every card of an initialised library."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library

    def devices(self) -> tuple[DeviceFacts, ...]:
        driver = self._optional(self._library.nvmlSystemGetDriverVersion)
        found = (self._card(index, driver) for index in range(self._library.nvmlDeviceGetCount()))
        return tuple(card for card in found if card is not None)

    def _card(self, index: int, driver: str | None) -> DeviceFacts | None:
        try:
            return self._facts(index, driver)
        except self._library.NVMLError as error:
            _log.warning("nvml.card_unreadable index=%d reason=%s", index, error)
            return None

    def _facts(self, index: int, driver: str | None) -> DeviceFacts:
        library = self._library
        handle = library.nvmlDeviceGetHandleByIndex(index)
        capability = self._optional(library.nvmlDeviceGetCudaComputeCapability, handle)
        cores = self._optional(library.nvmlDeviceGetNumGpuCores, handle)
        ceiling_mhz = self._optional(library.nvmlDeviceGetMaxClockInfo, handle, CLOCK_SM)
        pci = self._optional(library.nvmlDeviceGetPciInfo, handle)
        ecc = self._optional(library.nvmlDeviceGetCurrentEccMode, handle)
        mig = self._optional(library.nvmlDeviceGetMigMode, handle)
        return DeviceFacts(
            uuid=library.nvmlDeviceGetUUID(handle),
            name=library.nvmlDeviceGetName(handle),
            vendor="nvidia",
            index=index,
            memory_bytes=int(library.nvmlDeviceGetMemoryInfo(handle).total),
            source="nvml",
            compute_capability=capability,
            processors=processors_of(cores, capability),
            clock_khz=None if ceiling_mhz is None else ceiling_mhz * 1000,
            clock_is_ceiling=ceiling_mhz is not None,
            pci_address=None if pci is None else pci_text(pci.domain, pci.bus, pci.device),
            driver=driver,
            ecc=None if ecc is None else bool(ecc),
            partitioned=bool(mig and mig[0]),
        )

    def _optional(self, ask: Callable[..., _T], *arguments: Any) -> _T | None:
        """Return an answer that not every card or driver gives, or None."""
        try:
            return ask(*arguments)
        except self._library.NVMLError:
            return None
