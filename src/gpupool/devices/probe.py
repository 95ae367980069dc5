"""The port behind which every way of finding devices stands, and the facts they all report.

A probe reports what it can measure and None for the rest. A missing driver, library or platform is no error: there
are then no devices of that kind. What a device may be used for is not decided here but in `inventory`.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from gpupool.catalog import MeasuredCard

Source = Literal["nvml", "opencl", "cpu", "stand-in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What was measured of one device; None is not known."""

    uuid: str
    """Stable over restarts and driver updates, as long as the card keeps its slot or its own uuid."""
    name: str
    """As the driver reports it."""
    vendor: str
    """``nvidia``, ``amd``, ``intel``, or the driver's own word in lower case."""
    index: int
    """Position among this machine's devices of the vendor, from 0."""
    memory_bytes: int
    """VRAM of a GPU; half of the usable RAM for the CPU."""
    source: Source
    compute_capability: tuple[int, int] | None = None
    processors: int | None = None
    """Streaming multiprocessors, compute units, or usable CPU cores."""
    clock_khz: int | None = None
    """Rated maximum core clock, or the driver's ceiling where ``clock_is_ceiling``."""
    clock_is_ceiling: bool = False
    pci_address: str | None = None
    """``domain:bus:device.function`` in lower-case hexadecimal, such as ``0000:65:00.0``."""
    driver: str | None = None
    ecc: bool | None = None
    """Whether error correction is switched on."""
    partitioned: bool = False
    """Whether the card is split into MIG instances, so that nothing can hold it whole."""
    stand_in_for: str | None = None
    """The short ref of the model that this CPU stands in for; development mode."""

    @property
    def is_cpu(self) -> bool:
        """Tell whether this is the node's ``cpu`` device."""
        return self.source == "cpu"

    @property
    def stand_in(self) -> bool:
        """Tell whether a CPU stands in for a GPU here."""
        return self.stand_in_for is not None

    def measured(self, gpus_on_server: int, port: int | None = None) -> MeasuredCard:
        """Return these facts as the catalog's rules want them."""
        return MeasuredCard(
            name=self.name,
            index=self.index,
            memory_bytes=self.memory_bytes,
            processors=self.processors,
            clock_khz=self.clock_khz,
            clock_is_ceiling=self.clock_is_ceiling,
            gpus_on_server=gpus_on_server,
            port=port,
        )


class DeviceProbe(Protocol):
    """One way of finding devices."""

    def devices(self) -> tuple[DeviceFacts, ...]:
        """Return this machine's devices of one kind, in a stable order; empty where there are none."""
        ...


def pci_text(domain: int, bus: int, device: int, function: int = 0) -> str:
    """Return a PCI address as Linux writes it, so that two libraries' views of one card compare equal."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
