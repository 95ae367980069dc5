"""Device discovery as a process of its own: ``python -m gpupool.agent.discovery`` prints the devices as JSON.

Drivers and their libraries cost tens of megabytes, and a broken driver can hang for good. Both stay outside the
agent: the memory goes back when this process ends, and a hang is only a process that is given up.
"""

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from gpupool.contracts.agent_link import DeviceReport
from gpupool.core.errors import GpupoolError
from gpupool.fleet.devices import DeviceKind

if TYPE_CHECKING:
    from gpupool.devices.inventory import InventoryEntry

ASKED: Final = "GPUPOOL_DISCOVERY"
"""Environment variable with what is asked for, as JSON."""
_MOST_TEXT: Final = 2000


def device_report(entry: "InventoryEntry") -> DeviceReport:
    """Return a device as the agent link carries it; memory in whole MiB, rounded down."""
    facts = entry.facts
    return DeviceReport(
        id=facts.uuid,
        kind=DeviceKind.CPU if facts.is_cpu else DeviceKind.GPU,
        name=facts.name[:200],
        index=facts.index,
        memory_mib=facts.memory_bytes // 2**20,
        short_ref=entry.short_ref,
        failed_rules=[result.text[:_MOST_TEXT] for result in entry.failed][:20],
        hourly_usd=entry.hourly_usd,
        stand_in=facts.stand_in,
    )


def discover_reports(stand_in_gpus: int, stand_in_model: str, machine_identity: str) -> list[DeviceReport]:
    """Return this machine's devices; raise InvalidInputError or NotFoundError for a stand-in that cannot be."""
    from gpupool.catalog import Catalog
    from gpupool.devices.cpu import CpuProbe
    from gpupool.devices.inventory import discover
    from gpupool.devices.nvml import NvmlProbe
    from gpupool.devices.opencl import OpenClProbe
    from gpupool.devices.probe import DeviceProbe
    from gpupool.devices.stand_in import StandInProbe

    catalog = Catalog.load()
    probes: list[DeviceProbe] = [NvmlProbe(), OpenClProbe(), CpuProbe(identity=machine_identity or None)]
    if stand_in_gpus:
        probes.append(StandInProbe(catalog.get(stand_in_model), stand_in_gpus))
    return [device_report(entry) for entry in discover(catalog, probes)]


def main() -> int:
    """Print the devices; for a fault that a person can mend, print it to standard error and return its exit code."""
    asked: dict[str, Any] = json.loads(os.environ.get(ASKED, "{}"))
    try:
        found = discover_reports(
            int(asked.get("stand_in_gpus", 0)),
            str(asked.get("stand_in_model", "")),
            str(asked.get("machine_identity", "")),
        )
    except GpupoolError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code
    sys.stdout.write(json.dumps([report.model_dump(mode="json") for report in found]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
