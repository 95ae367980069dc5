"""The last resort: a process that was told to stop is gone within its limit, whatever hangs in it.

Worker threads are waited for when the interpreter ends, and one that hangs in a driver would hold it for ever.
"""

import os
import threading
from typing import Final

import structlog

from gpupool.core.standard_streams import finish

log = structlog.get_logger(__name__)
GRACE_SECONDS: Final = 2.0
"""For closing connections, after the time that work in progress gets."""
FORCED_STATUS: Final = 1


def end_within(seconds: float) -> None:
    """Let this process end in ``seconds`` at the latest; one that has ended by itself notices nothing."""
    timer = threading.Timer(seconds, _force)
    timer.daemon = True
    timer.start()


def _force() -> None:
    log.error("forced_end", what_happened="work in progress did not stop within the limit")
    finish()
    os._exit(FORCED_STATUS)
