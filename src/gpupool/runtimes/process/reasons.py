"""Why a run ended, in words that start with a stable one."""

import signal
from pathlib import Path


def exit_reason(code: int | None, seconds: float, last_words: str) -> str:
    """Return the reason of an exit: ``code`` is negative for a signal and None where nobody could collect it.

    What a process wrote before a signal ended it has nothing to do with its end, so it is left out.
    """
    if code is not None and code < 0:
        return f"signal: {_signal_name(-code)} after {seconds:.1f} s"
    known = "unknown" if code is None else code
    return with_last_words(f"exit: code {known} after {seconds:.1f} s", last_words)


def with_last_words(reason: str, last_words: str) -> str:
    """Return the reason, followed by what the workload wrote last if it wrote anything."""
    return f"{reason}: {last_words}" if last_words else reason


def with_closed_path(reason: str, path: Path | None) -> str:
    """Return the reason, followed by the path of the command that is closed to workloads, where there is one."""
    if path is None:
        return reason
    return (
        f"{reason}; the pool's wall keeps workloads from reading {path}: name its folder in the agent's "
        "GPUPOOL_WORKLOAD_PATHS, or put it below /usr/local"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"number {number}"
