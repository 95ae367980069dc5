"""The GPU driver: there or not, and answering or not. No GPU is a fine machine; a broken driver is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpupool.cli.checks.finding import Finding, failed, passed, warned
from gpupool.devices.nvml import DRIVER_LIBRARY, NvmlLibrary, load_nvml

KERNEL_SIGNS: Final = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
_NAME: Final = "GPU driver"


def check_nvml(
    load: Callable[[], NvmlLibrary | None] = load_nvml, signs: tuple[Path, ...] = KERNEL_SIGNS
) -> Finding:
    """Tell whether the NVIDIA driver answers, and with how many cards."""
    library = load()
    if library is None:
        return _without_library(signs)
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return failed(
            _NAME,
            "NVML is there and does not start",
            f"The driver says: {error}.",
            "After a driver upgrade restart the machine; in a container give it the GPUs (`--gpus all`).",
        )
    try:
        count, driver = library.nvmlDeviceGetCount(), library.nvmlSystemGetDriverVersion()
        faults = _broken_cards(library, count)
    except library.NVMLError as error:
        return failed(_NAME, "NVML started", f"It does not answer: {error}.", "Restart the machine.")
    finally:
        library.nvmlShutdown()
    measured = f"NVIDIA {driver}, {count} cards"
    if faults:
        return failed(
            _NAME,
            measured,
            f"Cards that do not answer: {'; '.join(faults)}.",
            "See `dmesg | grep -i xid`; reset or reseat the card, or restart the machine.",
        )
    return passed(_NAME, measured)


def _broken_cards(library: NvmlLibrary, count: int) -> list[str]:
    faults = []
    for index in range(count):
        try:
            library.nvmlDeviceGetMemoryInfo(library.nvmlDeviceGetHandleByIndex(index))
        except library.NVMLError as error:
            faults.append(f"card {index}: {error}")
    return faults


def _without_library(signs: tuple[Path, ...]) -> Finding:
    if any(sign.exists() for sign in signs):
        return warned(
            _NAME,
            "the kernel module is loaded",
            f"The driver's library {DRIVER_LIBRARY} is not found, so no card can be used.",
            "Install the user-space part of the driver (package nvidia-utils or libnvidia-compute).",
        )
    return passed(_NAME, "none; the pool works on the CPU")
