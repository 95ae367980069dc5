"""Claims: what a placement holds of a device.

A device has at most one exclusive claim; shared claims together never exceed its memory; exclusive and shared
exclude each other. The ``cpu`` device takes shared claims only. The store applies the same rule as one conditional
update inside the placement's transaction; `fits` is the rule itself, used by the scheduler and by the tests.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpupool.core.errors import ConflictError
from gpupool.fleet.devices import Device, DeviceKind


class ClaimMode(StrEnum):
    """How a placement holds a device."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class ClaimRefusedError(ConflictError):
    """The device is claimed by others."""

    code = "claim_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one placement holds of one device."""

    placement_id: str
    device_id: str
    mode: ClaimMode
    mib: int
    """Memory held; the device's whole memory for an exclusive claim."""
    priority: int = 0
    """Higher stays longer where memory runs short."""


def refusal(device: Device, held: Iterable[Claim], mode: ClaimMode, mib: int) -> str | None:
    """Return why ``device``, already holding ``held``, refuses another claim; None when it takes it."""
    claims = list(held)
    if mode is ClaimMode.EXCLUSIVE:
        if device.kind is DeviceKind.CPU:
            return "a cpu device takes shared claims only"
        return f"held by {claims[0].placement_id}" if claims else None
    exclusive = next((claim for claim in claims if claim.mode is ClaimMode.EXCLUSIVE), None)
    if exclusive is not None:
        return f"held exclusively by {exclusive.placement_id}"
    free = device.memory_mib - sum(claim.mib for claim in claims)
    return f"{free} MiB free, {mib} MiB asked" if mib > free else None
