"""Every node's own ``cpu`` device: it takes CPU chutes (gpu_count 0) and CPU recompute, by shared claims only.

Its memory is half of the RAM this process may use, which leaves the other half to the system and to the pool.
"""

from pathlib import Path

from gpupool.devices import machine
from gpupool.devices.probe import DeviceFacts


class CpuProbe:
    """Finds the one CPU device of this machine."""

    def __init__(self, root: Path = machine.ROOT, identity: str | None = None) -> None:
        """``identity``: a stable id to use instead of the machine's, for nodes that share one machine."""
        self._root = root
        self._identity = identity

    def devices(self) -> tuple[DeviceFacts, ...]:
        """Return exactly one device, with the uuid ``cpu-<hash of the machine's id>``."""
        name, vendor = machine.cpu_description(self._root)
        return (
            DeviceFacts(
                uuid=f"cpu-{self._identity or machine.machine_hash(self._root)}",
                name=name,
                vendor=vendor,
                index=0,
                memory_bytes=machine.usable_memory_bytes(self._root) // 2,
                source="cpu",
                processors=machine.usable_cores(self._root),
                clock_khz=machine.rated_clock_khz(self._root),
            ),
        )
