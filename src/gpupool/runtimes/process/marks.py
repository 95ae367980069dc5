"""Marks in the environment of every workload, by which its processes are found without any record.

They catch what records cannot: a child launched an instant before the agent died, and a grandchild that opened a
session of its own and outlived its parent.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupool.core.processes import ProcessIdentity, identify

PLACEMENT: Final = "GPUPOOL_PLACEMENT"
RUNS: Final = "GPUPOOL_RUNS"
_MOST_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Marked:
    """A running process that carries our mark."""

    process: ProcessIdentity
    placement_id: str


def runs_mark(runs: Path) -> str:
    """Return the mark of one runs folder, so that two pools on a machine never end each other's processes."""
    return hashlib.sha256(os.fsencode(runs.resolve())).hexdigest()[:16]


def marks(runs: Path, placement_id: str) -> dict[str, str]:
    """Return the variables that mark a workload's processes."""
    return {PLACEMENT: placement_id, RUNS: runs_mark(runs)}


def find_marked(runs: Path) -> Iterator[Marked]:
    """Yield every running process that carries the mark of ``runs``: of this user, and for root of any."""
    wanted = f"{RUNS}={runs_mark(runs)}".encode()
    for name in os.listdir("/proc"):
        variables = _environment(int(name)) if name.isdecimal() else []
        if wanted not in variables:
            continue
        prefix = f"{PLACEMENT}=".encode()
        placement = next((item[len(prefix) :] for item in variables if item.startswith(prefix)), b"")
        process = identify(int(name))
        if process is not None:
            yield Marked(process, placement.decode(errors="replace"))


def _environment(pid: int) -> list[bytes]:
    try:
        if os.geteuid() not in {0, os.stat(f"/proc/{pid}").st_uid}:
            return []
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read(_MOST_BYTES).split(b"\0")
    except OSError:
        return []
