"""Signals of ``up``: the first Ctrl-C stops in good order, the second one at once."""

import signal
from types import FrameType


class StopRequested(BaseException):
    """Someone asked ``up`` to stop; derives from BaseException so that no handler of faults takes it for one."""


class StopSignals:
    """Turns SIGINT, SIGTERM and SIGHUP into `StopRequested` in the main thread."""

    def __init__(self) -> None:
        self.count = 0

    def install(self) -> None:
        """Take over the three signals."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def ignore(self) -> None:
        """Let nothing interrupt the rest."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        raise StopRequested(signal.Signals(number).name)
