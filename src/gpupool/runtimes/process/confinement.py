"""The wall around a workload: what this machine offers to build it from, and what each workload may reach.

A chute is somebody else's code. The best wall is a Unix user of its own and an allow-list of paths that the kernel
holds (Landlock). Where a machine lacks one of them the wall is lower, and that is said aloud: in the agent's log, in
the workload's own output, and by ``gpupool doctor``. What the levels are worth is in SECURITY.md.
"""

import grp
import os
import pwd
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from gpupool.runtimes.process.code_paths import code_paths, without
from gpupool.runtimes.process.records import RunFolder
from gpupool.runtimes.process.table import real_users
from gpupool.runtimes.process.threshold import landlock_version

FIRST_UID: Final = 61184
LAST_UID: Final = 65519
"""The users of workloads: numbers that distributions leave alone. The first is that of our own recompute servers."""
_GPU_GROUPS: Final = ("video", "render")
_SEARCH: Final = 2
"""CAP_DAC_READ_SEARCH: lets the user of a workload pass folders that are closed to others, such as the state folder
and a checkout below /root. What it opens there is still only what the allow-list names."""
_NEEDED: Final = {0: "CHOWN", _SEARCH: "DAC_READ_SEARCH", 5: "KILL", 6: "SETGID", 7: "SETUID", 8: "SETPCAP"}
_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/proc"),
    *("/opt/rocm", "/opt/amdgpu", "/opt/intel", "/opt/nvidia", "/opt/conda"),
    *("/sys/devices", "/sys/class", "/sys/bus", "/sys/dev", "/sys/block", "/sys/module", "/sys/fs/cgroup"),
    *("/sys/kernel/mm", "/run/systemd/resolve", "/run/opengl-driver", "/var/lib/ca-certificates"),
    *("/etc/alternatives", "/etc/OpenCL", "/etc/vulkan", "/etc/glvnd", "/etc/nvidia", "/etc/fonts"),
    *("/etc/ca-certificates", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/ca-trust"),
    *("/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone"),
    *(
        "/etc/hosts",
        "/etc/host.conf",
        "/etc/resolv.conf",
        "/etc/nsswitch.conf",
        "/etc/gai.conf",
        "/etc/passwd",
    ),
    *("/etc/group", "/etc/services", "/etc/protocols", "/etc/mime.types", "/etc/os-release", "/etc/magic"),
    *("/etc/terminfo", "/etc/inputrc", "/etc/locale.alias", "/etc/login.defs"),
)
"""Only what holds no secret, whatever its mode: the capability above reads past modes. So neither all of /etc/ssl, with
its private keys, nor of /opt and /sys/kernel."""
_DEVICES: Final = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
    *("/dev/dri", "/dev/kfd", "/dev/nvidia-caps", "/dev/infiniband"),
)
"""No terminals: what somebody types there is for nobody else."""
SHARED_MEMORY: Final = Path("/dev") / "shm"


class Wall(StrEnum):
    """How high the wall is."""

    OWN_USER = "own user"
    """A user of its own, and the kernel's allow-list of paths."""
    ALLOW_LIST = "allow-list"
    """The agent's user, behind the kernel's allow-list of paths."""
    FOLDERS = "folders"
    """The agent's user, kept apart by folders and environment only: it can read what the agent can read."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What this machine offers for the wall."""

    wall: Wall
    why: str
    """What is missing for a higher one; empty for the highest."""
    scoped: bool = True
    """Whether the kernel also keeps signals within the wall (Landlock 6, Linux 6.12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """How the workloads of one node are confined."""

    offer: Offer
    protected: Path
    """The state folder: nothing in it is reachable but what a workload is given."""
    readable: tuple[Path, ...] = ()
    """Folders that the owner of the node opens to every workload, for reading."""

    def plan(
        self, folder: RunFolder, uid: int | None, shared: Sequence[Path], kernels: Path
    ) -> dict[str, Any]:
        """Return the part of the threshold's plan that confines a run.

        ``shared``: what of the state folder it may read; ``kernels``: its folder of compiled code, which it may write.
        """
        walled = self.offer.wall is not Wall.FOLDERS
        return {
            "uid": uid,
            "groups": _gpu_groups() if uid is not None else [],
            "drop_capabilities": walled,
            "capabilities": [_SEARCH] if uid is not None else [],
            "allowed": self._allowed(folder, shared, kernels) if walled else None,
        }

    def _allowed(self, folder: RunFolder, shared: Sequence[Path], kernels: Path) -> dict[str, list[str]]:
        code = [
            part
            for path in (*map(Path, _SYSTEM), *code_paths(), *self.readable)
            for part in without(path, self.protected)
        ]
        graphics = Path("/dev").glob("nvidia*")
        return {
            "read": [str(path) for path in dict.fromkeys((*code, *shared))],
            "write": [str(path) for path in (*folder.private, kernels)],
            "shared memory": [str(SHARED_MEMORY)],
            "device": [*_DEVICES, *map(str, graphics)],
            "output": [str(folder.output)],
        }

    def note(self) -> str | None:
        """Return the line for a workload's output where the wall is not a full one; None where it is."""
        if self.offer.wall is not Wall.FOLDERS:
            return None
        return (
            "gpupool: this workload is kept apart by folders only and runs as the agent's user, "
            f"whose files it can read: {self.offer.why}."
        )


def look() -> Offer:
    """Return what this process could build the wall from."""
    version = landlock_version()
    if not version:
        return Offer(
            Wall.FOLDERS, "the kernel offers no Landlock (Linux 5.13 and later do, unless switched off)"
        )
    scoped = version >= 6
    if os.geteuid() != 0:
        return Offer(Wall.ALLOW_LIST, "the agent does not run as root, so it can give away no users", scoped)
    lacking = [name for number, name in _NEEDED.items() if not _capabilities() >> number & 1]
    if lacking:
        return Offer(Wall.ALLOW_LIST, f"the agent lacks the capabilities {', '.join(lacking)}", scoped)
    if not has_users(Path("/proc/self/uid_map").read_text()):
        why = f"the agent is root of a user namespace without the users {FIRST_UID} to {LAST_UID} (a rootless container)"
        return Offer(Wall.ALLOW_LIST, why, scoped)
    return Offer(Wall.OWN_USER, "", scoped)


def has_users(uid_map: str) -> bool:
    """Tell whether a user namespace with this map has every user that may be given away; outside one it has."""
    rows = [[int(number) for number in line.split()] for line in uid_map.splitlines()]
    return any(first <= FIRST_UID and first + count > LAST_UID for first, _, count in rows)


def draw_uid(taken: Collection[int]) -> int:
    """Return a user for a placement: in the range, of no account, of no other placement and of no running process.

    Drawn at random, so that two pools on one machine do not meet. Raises LookupError where none is free.
    """
    busy = {*taken, *(uid for _, uid in real_users())}
    numbers = list(range(FIRST_UID + 1, LAST_UID + 1))
    random.shuffle(numbers)
    for number in numbers:
        if number not in busy and not _has_account(number):
            return number
    raise LookupError(f"no user number from {FIRST_UID + 1} to {LAST_UID} is free")


def own_users(uids: Iterable[int | None]) -> set[int]:
    """Return those of ``uids`` that belong to one placement alone, so that all their processes are that placement's."""
    return {uid for uid in uids if uid is not None and FIRST_UID < uid <= LAST_UID}


def _has_account(number: int) -> bool:
    try:
        pwd.getpwuid(number)
    except KeyError:
        return False
    return True


def _gpu_groups() -> list[int]:
    found = {group.gr_name: group.gr_gid for group in grp.getgrall()}
    return [found[name] for name in _GPU_GROUPS if name in found]


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
