"""Devices: the GPUs of a node, and its one ``cpu`` device.

The ``cpu`` device (memory = half the node's RAM) takes shared claims only: CPU chutes and CPU recompute sit on it
together. A CPU that stands in for a GPU is development mode and says so.
"""

from dataclasses import dataclass
from enum import StrEnum


class DeviceKind(StrEnum):
    """What a device is."""

    GPU = "gpu"
    CPU = "cpu"


class ProofState(StrEnum):
    """Whether the card has shown that it is what it says."""

    UNPROVEN = "unproven"
    PROVEN = "proven"
    REFUTED = "refuted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or a node's CPU."""

    id: str
    """The device's own stable uuid."""
    node_id: str
    kind: DeviceKind
    name: str
    """As the driver reports it."""
    index: int
    memory_mib: int
    """VRAM of a GPU; half the node's RAM for the CPU."""
    short_ref: str | None = None
    """The catalog's short ref; None where the card is not in the catalog or fails one of its numbers."""
    failed_rules: tuple[str, ...] = ()
    """Why the card is not accepted as a catalog model, one sentence a rule."""
    hourly_usd: float | None = None
    """The validator's price basis for this model; None outside the catalog."""
    proof: ProofState = ProofState.UNPROVEN
    stand_in: bool = False
    """A CPU standing in for a GPU: development mode."""
    present: bool = True
    """Whether the last full inventory of the node showed it."""
