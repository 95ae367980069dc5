"""The node's devices: read once through a short-lived process, then looked up by id."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter, ValidationError

from gpupool.agent.discovery import ASKED
from gpupool.agent.settings import AgentSettings
from gpupool.contracts.agent_link import DeviceReport
from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.fleet.devices import DeviceKind

TIMEOUT_SECONDS: Final = 60.0
_KILL_SECONDS: Final = 2.0
_REPORTS: Final = TypeAdapter(list[DeviceReport])
_VISIBLE_BY_NAME: Final = ("GPU-", "MIG-")


class UnknownDeviceError(InvalidInputError):
    """The order names a device that this node does not have."""

    code = "unknown_device"


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices of this node."""

    devices: tuple[DeviceReport, ...]

    def visible(self, device_ids: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return indices and uuids of the GPUs that a workload is to see; empty ones for stand-ins.

        The uuids are those that the driver knows, and empty unless every device has one. Raises
        UnknownDeviceError for a device that is not here.
        """
        known = {device.id: device for device in self.devices if device.kind is DeviceKind.GPU}
        for device_id in device_ids:
            if device_id not in known:
                raise UnknownDeviceError(f"the device {device_id} is not on this node")
        real = [known[device_id] for device_id in device_ids if not known[device_id].stand_in]
        uuids = tuple(device.id for device in real if device.id.startswith(_VISIBLE_BY_NAME))
        return tuple(device.index for device in real), uuids if len(uuids) == len(real) else ()


async def read_inventory(settings: AgentSettings, timeout: float = TIMEOUT_SECONDS) -> Inventory:
    """Find the devices of this machine.

    Raises InvalidInputError for stand-in settings that cannot be met, EnvironmentProblemError where discovery dies or
    hangs (a driver does).
    """
    asked = json.dumps(
        {
            "stand_in_gpus": settings.stand_in_gpus,
            "stand_in_model": settings.stand_in_model,
            "machine_identity": settings.machine_identity,
        }
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gpupool.agent.discovery",
        env={**os.environ, ASKED: asked},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout)
    except TimeoutError as error:
        raise EnvironmentProblemError(
            f"The devices could not be read within {timeout:g} s: a driver hangs.",
            remedy="Look at the kernel log (`dmesg`) for faults of the GPU driver; a reboot may be needed.",
        ) from error
    finally:
        if process.returncode is None:
            await _give_up(process)
    return _parse(process.returncode, out, err.decode(errors="replace"))


async def _give_up(process: asyncio.subprocess.Process) -> None:
    """Kill it, and leave it behind where not even that helps: a driver may hold it for good."""
    with suppress(ProcessLookupError):
        process.kill()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _KILL_SECONDS)


def _parse(code: int | None, out: bytes, err: str) -> Inventory:
    words = err.strip().splitlines()[-1:] or ["it said nothing"]
    if code in {InvalidInputError.exit_code, 4}:
        raise InvalidInputError(words[0], remedy="Correct the stand-in settings; see `gpupool gpu catalog`.")
    try:
        return Inventory(tuple(_REPORTS.validate_json(out)))
    except ValidationError as error:
        raise EnvironmentProblemError(
            f"The devices could not be read: {words[0]}.",
            remedy="Run `gpupool gpu list` on this machine; it shows which driver fails.",
        ) from error
