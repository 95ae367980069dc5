"""Ties somebody else's program to this process, so that it ends even where this one is killed.

The program is started through a few lines that tell the kernel so and then become it; what they set outlives that.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

NOT_STARTED: Final = 127
"""Exit status of a program that the system cannot run, as shells tell it."""
_LINES: Final = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit(0)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write(f"{{sys.argv[2]}} failed with: {{error.strerror}}\\n")
    sys.exit({NOT_STARTED})
"""


def leashed(command: Sequence[str]) -> list[str]:
    """Return what to start instead of ``command`` (with a whole path) so that it dies with the calling process."""
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _LINES, str(os.getpid()), *command]
