"""Launching: one child in a session and process group of its own, writing to a file, behind its wall.

The child starts as `threshold`, which gives up the agent's rights and then becomes the workload.
No pipe ties the child to us, so it outlives the agent. Handles of our own children are kept here until their exit
was collected, whoever watches them by then.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpupool.core.processes import ProcessIdentity
from gpupool.runtimes.process import threshold
from gpupool.runtimes.process.environment import LaunchFailedError
from gpupool.runtimes.process.marks import PLACEMENT, RUNS
from gpupool.runtimes.process.output import open_for_append
from gpupool.runtimes.process.records import RunFolder
from gpupool.runtimes.process.table import identity_of

_children: Final[dict[ProcessIdentity, subprocess.Popen[bytes]]] = {}


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: RunFolder,
    confined: Mapping[str, Any],
    note: str | None = None,
) -> ProcessIdentity:
    """Start a child in the run's working folder and return who it is; raise LaunchFailedError where that fails.

    ``confined``: the plan of its wall (`Confinement.plan`); ``note``: a line for its output. Blocks until the child
    runs the command; not for an event loop.
    """
    _, work, _ = folder.private
    plan = {**confined, "command": list(command), "environment": dict(environment)}
    marks = {name: environment[name] for name in (PLACEMENT, RUNS)}
    try:
        with open_for_append(folder.output, confined["uid"]) as output:
            if note is not None:
                os.write(output.fileno(), f"{note}\n".encode())
            child, fault = _cross(plan, marks, str(work), output.fileno())
    except (OSError, ValueError) as error:
        fault = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise LaunchFailedError(f"{command[0]} cannot be run: {fault}.") from error
    if fault:
        child.wait()
        raise LaunchFailedError(f"{command[0]} cannot be run: {fault}.")
    process = identity_of(child.pid)
    if process is None:
        raise LaunchFailedError(f"{command[0]} was gone before it could be recorded.")
    _children[process] = child
    return process


def _cross(
    plan: Mapping[str, Any], marks: Mapping[str, str], work: str, output: int
) -> tuple[subprocess.Popen[bytes], str]:
    """Start the threshold; return the child once it has become the workload, or with the reason why it has not."""
    content = json.dumps(plan).encode()
    plan_descriptor = os.memfd_create("plan")
    reading, writing = os.pipe()
    try:
        with os.fdopen(os.dup(plan_descriptor), "wb") as file:
            file.write(content)
        os.lseek(plan_descriptor, 0, os.SEEK_SET)
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", threshold.__file__, str(plan_descriptor), str(writing)],
            env=dict(marks),
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            umask=0o077,
            pass_fds=(plan_descriptor, writing),
        )
    finally:
        os.close(writing)
        os.close(plan_descriptor)
        told = os.fdopen(reading, "rb")
    with told:
        return child, told.read().decode(errors="replace")


def collect(process: ProcessIdentity) -> int | None:
    """Return how a child that has ended did so: its exit code, or minus the signal; None where it is not ours.

    An adopted process is nobody's child here, so how it ended cannot be known.
    """
    child = _children.pop(process, None)
    return None if child is None else child.wait()
