"""A child that must not outlive its parent, however that ends: a killed parent tells nobody.

Light on purpose: programs call it first, before they load anything.
"""

import ctypes
import os
import signal
import sys
from typing import Final

_SET_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG."""


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent, of pid ``parent``, ends; at once where it has. Linux only."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
