"""Launching: one child in a session and process group of its own, writing to a file.

No pipe ties the child to us, so it outlives the agent. Handles of our own children are kept here until their exit
was collected, whoever watches them by then.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from gpupool.core.processes import ProcessIdentity
from gpupool.runtimes.process.environment import LaunchFailedError
from gpupool.runtimes.process.records import RunFolder
from gpupool.runtimes.process.table import identity_of

_children: Final[dict[ProcessIdentity, subprocess.Popen[bytes]]] = {}


def spawn(command: Sequence[str], environment: Mapping[str, str], folder: RunFolder) -> ProcessIdentity:
    """Start a child in the run's working folder and return who it is; raise LaunchFailedError where that fails.

    Blocks until the child runs the command; not for an event loop.
    """
    _, work, _ = folder.private
    try:
        output = os.open(folder.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                umask=0o077,
            )
        finally:
            os.close(output)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise LaunchFailedError(f"{command[0]} cannot be run: {reason}.") from error
    process = identity_of(child.pid)
    if process is None:
        raise LaunchFailedError(f"{command[0]} was gone before it could be recorded.")
    _children[process] = child
    return process


def collect(process: ProcessIdentity) -> int | None:
    """Return how a child that has ended did so: its exit code, or minus the signal; None where it is not ours.

    An adopted process is nobody's child here, so how it ended cannot be known.
    """
    child = _children.pop(process, None)
    return None if child is None else child.wait()
