"""The clock: plausible, kept by someone, not stepped while the pool runs, and the same as control's.

Signed requests are refused when the clocks of both sides differ by more than five minutes.
"""

import ctypes
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from gpupool.cli.checks.finding import Finding, failed, passed, warned
from gpupool.core.keys import MAX_SKEW_SECONDS
from gpupool.core.processes import ProcessIdentity

EARLIEST: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Older than this program, so a clock before it is wrong."""
_SET_CLOCK: Final = "Set the clock (`timedatectl set-ntp true`, or start chrony)."
_TIMEX_BYTES: Final = 256
"""More than the kernel's struct timex has on any platform."""
_TIME_ERROR: Final = 5
_STEP_SECONDS: Final = 5.0


def check_date(now: datetime) -> Finding:
    """Tell whether the wall clock can be right at all."""
    name, measured = "clock", f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < EARLIEST:
        return failed(name, measured, "That is before this program was made.", _SET_CLOCK)
    return passed(name, measured)


def kernel_synchronized() -> bool | None:
    """Return whether the kernel's clock is being kept by a time service; None where it cannot be asked."""
    try:
        adjust = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    # Mode 0, the first field of an empty record, only reads.
    state = adjust(ctypes.create_string_buffer(_TIMEX_BYTES))
    return None if state < 0 else bool(state != _TIME_ERROR)


def check_kept(synchronized: Callable[[], bool | None] = kernel_synchronized) -> Finding:
    """Tell whether a time service keeps the clock."""
    name, kept = "clock service", synchronized()
    if kept is None:
        return passed(name, "unknown here")
    if not kept:
        return warned(
            name,
            "not synchronized",
            f"No time service keeps the clock; agents are refused when it is off by {MAX_SKEW_SECONDS} s.",
            _SET_CLOCK,
        )
    return passed(name, "synchronized")


def started_at(process: ProcessIdentity) -> float:
    """Return when a process started by the wall clock of now (Unix seconds), reckoned from its ticks since boot."""
    return time.time() - process.age()


def check_step(started: float, recorded: float) -> Finding:
    """Tell whether the wall clock was set while the pool ran.

    ``started``: see `started_at`; ``recorded``: when the process wrote its record, by the wall clock of then.
    A record is written some seconds after the start at most.
    """
    name, ahead = "clock steps", recorded - started
    if not -_STEP_SECONDS <= ahead <= 60.0:
        return warned(
            name,
            f"{abs(ahead):.0f} s since the pool started",
            f"The clock was set {'forward' if ahead < 0 else 'back'} while the pool ran.",
            "Times in events and logs before it are off by that much; nothing else to do.",
        )
    return passed(name, "none since the pool started")


def check_skew(date: str | None, now: datetime) -> Finding:
    """Compare control's ``Date`` header with this machine's clock; seconds apart are fine."""
    name = "clock of control"
    try:
        theirs = parsedate_to_datetime(date) if date else None
    except ValueError:
        theirs = None
    if theirs is None:
        return passed(name, "it tells none")
    if theirs.tzinfo is None:
        theirs = theirs.replace(tzinfo=UTC)
    apart = abs((theirs - now).total_seconds())
    measured = f"{apart:.0f} s apart"
    if apart > MAX_SKEW_SECONDS:
        return failed(name, measured, f"Requests signed {MAX_SKEW_SECONDS} s off are refused.", _SET_CLOCK)
    if apart > MAX_SKEW_SECONDS / 10:
        return warned(name, measured, "The clocks run apart.", _SET_CLOCK)
    return passed(name, measured)
