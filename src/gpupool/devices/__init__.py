"""The devices of this machine: NVIDIA cards through NVML, any GPU through OpenCL, the CPU itself.

Adapters: errors of the drivers' libraries end here, and a missing driver is no device, never an error. Importing
this package loads no driver library; `gpupool.devices.inventory.discover` asks them.
"""

from gpupool.devices.inventory import InventoryEntry, Permission, discover
from gpupool.devices.probe import DeviceFacts, DeviceProbe

__all__ = ["DeviceFacts", "DeviceProbe", "InventoryEntry", "Permission", "discover"]
