"""The threshold: a small program that every workload passes on its way from the agent's rights to its own.

It runs as a file of its own (``python -I -S threshold.py PLAN FAULTS``), imports nothing of ours, and turns into the
workload by ``execve``, so that the pid stays. The environment of the workload comes through the plan and not as our
own: a spec that sets ``LD_PRELOAD`` must not get its code into a process that is still privileged. ``PLAN`` and
``FAULTS`` are descriptors: the plan as JSON, and a pipe that closes without a word when the workload runs.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG: Final = 1
_PATH_BENEATH: Final = 1
_KEEP_CAPS, _CAP_BOUNDING_DROP, _NO_NEW_PRIVS, _AMBIENT, _AMBIENT_RAISE = 8, 24, 38, 47, 2
_CAPABILITY_VERSION: Final = 0x20080522

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
_CHANGES: Final = 0x1FF0
"""Removing and making entries of every kind."""
_REMOVE_FILE, _MAKE_FILE = 1 << 5, 1 << 8
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL
RIGHTS: Final[Mapping[str, int]] = {
    "read": EXECUTE | READ_FILE | READ_DIR,
    "write": EXECUTE | READ_FILE | READ_DIR | WRITE_FILE | _CHANGES | _REFER | _TRUNCATE,
    # By name only: who may not list it does not find what others have in it.
    "shared memory": READ_FILE | WRITE_FILE | _MAKE_FILE | _REMOVE_FILE | _TRUNCATE,
    "device": READ_FILE | READ_DIR | WRITE_FILE | _IOCTL,
    "output": WRITE_FILE | READ_FILE | _TRUNCATE,
}
_MOST_FILES: Final = 524_288

_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def landlock_version() -> int:
    """Return the version of Landlock that the kernel offers, 0 where it offers none."""
    return max(
        0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)))
    )


def cross(plan: Mapping[str, Any]) -> None:
    """Give up what the plan does not grant; raise OSError where that fails. There is no way back."""
    _limit()
    _checked(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    allowed = plan["allowed"]
    # The paths are opened while we may still reach them all.
    ruleset = None if allowed is None else _ruleset(allowed)
    if plan["drop_capabilities"]:
        _drop(plan["uid"], plan["groups"], plan["capabilities"])
    if ruleset is not None:
        _checked(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "Landlock")
        os.close(ruleset)


def _limit() -> None:
    """No core dump can hold a secret, files are many but not endless, signals are as at birth."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and the workload would inherit that
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > _MOST_FILES:
        soft = _MOST_FILES if soft == resource.RLIM_INFINITY else min(soft, _MOST_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, _MOST_FILES))


def _ruleset(allowed: Mapping[str, Sequence[str]]) -> int:
    """Return the descriptor of a ruleset that grants ``allowed``: paths by kind of right."""
    version = landlock_version()
    handled = sum(1 << bit for bit in range(16) if bit < 13 or version >= {13: 2, 14: 3, 15: 5}[bit])
    # From version 6 on: no abstract socket and no signal beyond the workload's own processes.
    wanted = _Ruleset(handled, 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else ctypes.sizeof(wanted)
    made = int(
        _libc.syscall(_CREATE_RULESET, ctypes.byref(wanted), ctypes.c_size_t(size), ctypes.c_uint32(0))
    )
    _checked(made, "Landlock")
    for kind, paths in allowed.items():
        for path in paths:
            _allow(made, path, RIGHTS[kind] & handled)
    return made


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Grant ``rights`` at and below ``path``; a path that is not there grants nothing."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{opened}"):
            rights &= _OF_FILES
        rule = _PathBeneath(rights, opened)
        _checked(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0), f"Landlock, {path}")
    finally:
        os.close(opened)


def _drop(uid: int | None, groups: Sequence[int], capabilities: Sequence[int]) -> None:
    """Become ``uid`` (None: stay who we are) and keep nothing but ``capabilities``."""
    for capability in range(64):
        if capability not in capabilities and _libc.prctl(_CAP_BOUNDING_DROP, capability, 0, 0, 0) != 0:
            # The kernel has no more of them, or we may not touch the bounding set. It does not matter then, since
            # without new privileges none of it comes back.
            if ctypes.get_errno() in {errno.EINVAL, errno.EPERM}:
                break
            _checked(-1, f"capability {capability}")
    if uid is not None:
        _checked(_libc.prctl(_KEEP_CAPS, 1, 0, 0, 0), "keeping capabilities")
        os.setgroups(groups)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    mask = sum(1 << capability for capability in capabilities)
    half = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    header = _CapabilityHeader(_CAPABILITY_VERSION, 0)
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref(half)), "capabilities")
    for capability in capabilities:
        _checked(_libc.prctl(_AMBIENT, _AMBIENT_RAISE, capability, 0, 0), f"capability {capability}")


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} ({what})")


def main() -> None:
    """Read the plan, cross, and become the workload; say why where that fails."""
    plan_descriptor, faults = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(faults, False)
    with os.fdopen(plan_descriptor, "rb") as file:
        plan = json.load(file)
    command = plan["command"]
    try:
        cross(plan)
        os.execve(command[0], command, plan["environment"])
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        os.write(faults, (text or type(error).__name__).encode()[:1000])
        os._exit(127)


if __name__ == "__main__":
    main()
