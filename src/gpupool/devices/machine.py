"""What this machine lets the pool use: its stable identity, and memory and cores after every limit above us.

In a container or a systemd slice the kernel shows the whole machine's RAM and cores, while the control group allows
less. Planning with the larger number ends in an out-of-memory kill, so the smallest limit on the way up counts.
Every function takes the root of the file system, so that tests bring a machine of their own.
"""

import hashlib
import math
import os
import socket
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path("/")
_IDENTITY_FILES: Final = ("etc/machine-id", "var/lib/dbus/machine-id", "sys/class/dmi/id/product_uuid")
_UNIFIED_MOUNTS: Final = ("sys/fs/cgroup", "sys/fs/cgroup/unified")


def machine_hash(root: Path = ROOT) -> str:
    """Return 16 hexadecimal digits that stay the same on this machine.

    It is a keyed hash, as machine-id(5) asks, so the id itself never leaves the machine. A machine without any id
    file is told by its host name.
    """
    found = (_text(root / name) for name in _IDENTITY_FILES)
    identity = next((text for text in found if text), None) or socket.gethostname()
    return hashlib.blake2b(identity.encode(), digest_size=8, key=b"gpupool machine").hexdigest()


def usable_memory_bytes(root: Path = ROOT) -> int:
    """Return the RAM that this process may use: the machine's, or the least limit of its control groups."""
    limits = (_whole(text) for text in _limit_files(root, "memory", "memory.max", "memory.limit_in_bytes"))
    return min([_ram_bytes(root), *(limit for limit in limits if limit is not None)])


def usable_cores(root: Path = ROOT, allowed: int | None = None) -> int:
    """Return the CPU cores this process may use, at least 1: its affinity, or the least quota, rounded up.

    ``allowed`` is the affinity count; None asks the kernel.
    """
    cores = len(os.sched_getaffinity(0)) if allowed is None else allowed
    quotas = [_unified_quota(text) for text in _limit_files(root, "", "cpu.max", "")]
    periods = _limit_files(root, "cpu", "", "cpu.cfs_period_us")
    quotas += [
        _quota(quota, period)
        for quota, period in zip(_limit_files(root, "cpu", "", "cpu.cfs_quota_us"), periods, strict=False)
    ]
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas if quota is not None)]))


def cpu_description(root: Path = ROOT) -> tuple[str, str]:
    """Return the processor's name and its vendor word (``amd``, ``intel``, ``arm``)."""
    fields = _pairs(_text(root / "proc/cpuinfo"))
    vendors = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}
    vendor = vendors.get(fields.get("vendor_id", ""), "arm" if "CPU implementer" in fields else "unknown")
    return fields.get("model name") or fields.get("Model") or f"{vendor} processor", vendor


def rated_clock_khz(root: Path = ROOT) -> int | None:
    """Return the processor's highest clock, where the kernel tells it."""
    return _whole(_text(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"))


def _ram_bytes(root: Path) -> int:
    total = _pairs(_text(root / "proc/meminfo")).get("MemTotal", "")
    number = _whole(total.removesuffix("kB").strip())
    return number * 1024 if number else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _limit_files(root: Path, controller: str, unified: str, classic: str) -> Iterator[str]:
    """Yield a limit file's content for our control group and each one above it; both cgroup versions."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers and unified:
            mounts, name = _UNIFIED_MOUNTS, unified
        elif classic and controller in controllers.split(","):
            mounts, name = (f"sys/fs/cgroup/{controller}", f"sys/fs/cgroup/{controllers}"), classic
        else:
            continue
        for mount in dict.fromkeys(mounts):
            yield from _upwards(root / mount, PurePosixPath(path), name)


def _upwards(mount: Path, group: PurePosixPath, name: str) -> Iterator[str]:
    for step in (group, *group.parents):
        if text := _text(mount / str(step).lstrip("/") / name):
            yield text


def _unified_quota(text: str) -> float | None:
    quota, _, period = text.partition(" ")
    return _quota(quota, period)


def _quota(quota: str, period: str) -> float | None:
    """Return cores from microseconds of time per period; None for no limit (``max``, -1)."""
    time, span = _whole(quota), _whole(period)
    return time / span if time and span else None


def _pairs(text: str) -> dict[str, str]:
    """Return ``key : value`` lines; of a key that repeats (one block a core) the first."""
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        pairs.setdefault(key.strip(), value.strip())
    return pairs


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
