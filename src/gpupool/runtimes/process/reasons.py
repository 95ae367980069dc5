"""Why a run ended, in words that start with a stable one."""

import signal


def exit_reason(code: int | None, seconds: float, last_words: str) -> str:
    """Return the reason of an exit: ``code`` is negative for a signal and None where nobody could collect it."""
    if code is not None and code < 0:
        return with_last_words(f"signal: {_signal_name(-code)} after {seconds:.1f} s", last_words)
    known = "unknown" if code is None else code
    return with_last_words(f"exit: code {known} after {seconds:.1f} s", last_words)


def with_last_words(reason: str, last_words: str) -> str:
    """Return the reason, followed by what the workload wrote last if it wrote anything."""
    return f"{reason}: {last_words}" if last_words else reason


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"number {number}"
