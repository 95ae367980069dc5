"""GPUs of any vendor through OpenCL, by the optional pyopencl of the ``node`` extra.

For AMD and Intel cards this is the only way here. For NVIDIA cards it adds the rated clock and the compute units
exactly as a validator's proof tool reads them. Importing pyopencl costs a third of a second and 30 MB, so it
happens only on machines where some OpenCL platform is registered at all.
"""

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol, cast

from gpupool.devices.machine import machine_hash
from gpupool.devices.probe import DeviceFacts, pci_text

_log = logging.getLogger(__name__)

TYPE_CPU: Final = 2
TYPE_GPU: Final = 4
"""OpenCL's number of the GPU device type. The numbers below are OpenCL's as well, fixed by its C interface."""
COMPUTE_UNITS: Final = 0x1002
CLOCK_MHZ: Final = 0x100C
MEMORY_BYTES: Final = 0x101F
ERROR_CORRECTION: Final = 0x1024
NAME: Final = 0x102B
VENDOR: Final = 0x102C
DRIVER: Final = 0x102D
NVIDIA_MAJOR: Final = 0x4000
NVIDIA_MINOR: Final = 0x4001
NVIDIA_PCI_BUS: Final = 0x4008
NVIDIA_PCI_SLOT: Final = 0x4009
NVIDIA_PCI_DOMAIN: Final = 0x400A
AMD_TOPOLOGY: Final = 0x4037

_VENDOR_FOLDER: Final = Path("/etc/OpenCL/vendors")
_VENDOR_VARIABLES: Final = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH")
_VENDOR_WORDS: Final = (("nvidia", "nvidia"), ("advanced micro", "amd"), ("amd", "amd"), ("intel", "intel"))


class ClDevice(Protocol):
    """What is asked of an OpenCL device; ``get_info`` raises the module's ``Error`` for what it does not know."""

    def get_info(self, param: int, /) -> Any: ...


class ClPlatform(Protocol):
    """What is asked of an OpenCL platform."""

    def get_devices(self, device_type: int, /) -> Sequence[ClDevice]: ...


class OpenClLibrary(Protocol):
    """The part of the ``pyopencl`` module that is used."""

    Error: type[Exception]

    def get_platforms(self) -> Sequence[ClPlatform]: ...


def load_opencl() -> OpenClLibrary | None:
    """Return pyopencl, or None where it is not installed, not loadable, or no platform is registered."""
    spec = find_spec("pyopencl")
    if spec is None or spec.origin is None or not _platform_registered(Path(spec.origin).parent):
        return None
    try:
        return cast(OpenClLibrary, import_module("pyopencl"))
    except ImportError as error:
        _log.warning("opencl.unloadable reason=%s", error)
        return None


def _platform_registered(package: Path) -> bool:
    """Tell whether OpenCL's loader could find a platform: one is named by a variable or has an ``.icd`` file."""
    if sys.platform != "linux" or any(os.environ.get(name) for name in _VENDOR_VARIABLES):
        return True
    return any(any(folder.glob("*.icd")) for folder in (_VENDOR_FOLDER, package / ".libs"))


class OpenClProbe:
    """Finds GPUs of every OpenCL platform; each card once, even where two platforms show it."""

    def __init__(
        self,
        load: Callable[[], OpenClLibrary | None] = load_opencl,
        identity: str | None = None,
        device_type: int = TYPE_GPU,
    ) -> None:
        """``identity``: a stable id of the node to use in made-up uuids instead of the machine's."""
        self._load = load
        self._identity = identity
        self._type = device_type

    def devices(self) -> tuple[DeviceFacts, ...]:
        """Return the GPUs, in platform order. Without pyopencl, a platform or a GPU there are none."""
        return tuple(facts for facts, _ in self.handles())

    def handles(self) -> list[tuple[DeviceFacts, ClDevice]]:
        """Return the same with the library's own object of each."""
        library = self._load()
        if library is None:
            return []
        identity = self._identity or machine_hash()
        found: dict[str, tuple[DeviceFacts, ClDevice]] = {}
        per_vendor: dict[str, int] = {}
        for position, device in enumerate(_of_type(library, self._type)):
            facts = _Reader(library, device, identity).facts(position, per_vendor)
            if facts is not None and facts.uuid not in found:
                found[facts.uuid] = facts, device
                per_vendor[facts.vendor] = per_vendor.get(facts.vendor, 0) + 1
        return list(found.values())


def _of_type(library: OpenClLibrary, device_type: int) -> list[ClDevice]:
    try:
        platforms = library.get_platforms()
    except library.Error as error:
        _log.debug("opencl.no_platform reason=%s", error)
        return []
    devices: list[ClDevice] = []
    for platform in platforms:
        try:
            devices += platform.get_devices(device_type)
        except library.Error as error:
            _log.debug("opencl.no_gpu reason=%s", error)
    return devices


class _Reader:
    """Reads one OpenCL device."""

    def __init__(self, library: OpenClLibrary, device: ClDevice, identity: str) -> None:
        self._library = library
        self._device = device
        self._identity = identity

    def facts(self, position: int, per_vendor: dict[str, int]) -> DeviceFacts | None:
        """Return the device's facts, or None (logged) where it doesn't even tell its name or memory."""
        name, memory = self._ask(NAME), self._ask(MEMORY_BYTES)
        if not name or not memory:
            _log.warning("opencl.card_unreadable position=%d", position)
            return None
        vendor = _vendor_word(str(self._ask(VENDOR) or "unknown"))
        clock, ecc = self._ask(CLOCK_MHZ), self._ask(ERROR_CORRECTION)
        pci = self._pci_address()
        return DeviceFacts(
            uuid=_made_uuid(self._identity, str(name), pci or str(position)),
            name=str(name).strip(),
            vendor=vendor,
            index=per_vendor.get(vendor, 0),
            memory_bytes=int(memory),
            source="opencl",
            compute_capability=self._compute_capability(),
            processors=self._ask(COMPUTE_UNITS),
            clock_khz=int(clock) * 1000 if clock else None,
            pci_address=pci,
            driver=self._ask(DRIVER),
            ecc=None if ecc is None else bool(ecc),
        )

    def _ask(self, param: int) -> Any:
        try:
            return self._device.get_info(param)
        except self._library.Error:
            return None

    def _compute_capability(self) -> tuple[int, int] | None:
        major, minor = self._ask(NVIDIA_MAJOR), self._ask(NVIDIA_MINOR)
        return None if major is None or minor is None else (int(major), int(minor))

    def _pci_address(self) -> str | None:
        bus, slot = self._ask(NVIDIA_PCI_BUS), self._ask(NVIDIA_PCI_SLOT)
        if bus is not None and slot is not None:
            return pci_text(int(self._ask(NVIDIA_PCI_DOMAIN) or 0), int(bus), int(slot) >> 3, int(slot) & 7)
        topology = self._ask(AMD_TOPOLOGY)
        if topology is None:
            return None
        return pci_text(0, topology.bus & 0xFF, topology.device, topology.function)


def _vendor_word(text: str) -> str:
    lower = text.lower()
    return next((vendor for word, vendor in _VENDOR_WORDS if word in lower), lower.strip())


def _made_uuid(identity: str, name: str, place: str) -> str:
    """Return a uuid for a card whose driver gives none: the same card in the same slot of one node keeps it."""
    return "opencl-" + hashlib.sha256(f"{identity}\n{name}\n{place}".encode()).hexdigest()[:32]
