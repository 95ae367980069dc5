"""What can go wrong with one host, sorted by what follows from it for the look-up and for the host."""

from enum import StrEnum

from gpupool.core.errors import GpupoolError


class Follows(StrEnum):
    """What follows from a trouble."""

    REST = "rest"
    """The host failed: leave it alone for the retry interval and ask another one."""
    PAUSE = "pause"
    """The host is busy, starting or stopping: leave it alone for a moment."""
    ELSEWHERE = "elsewhere"
    """The host cannot take this question: ask another one; others may still go to this host."""
    DOUBT = "doubt"
    """The host says that there is no proof: true unless another host finds one."""
    QUARANTINE = "quarantine"
    """The host answered wrong: ask it only when nobody else is left."""
    RAISE = "raise"
    """The question itself is at fault: every host would say the same."""


class HostTroubleError(Exception):
    """A host did not give a good answer; never leaves the client."""

    def __init__(
        self, follows: Follows, reason: str, *, pause_s: float = 0.0, error: GpupoolError | None = None
    ) -> None:
        super().__init__(reason)
        self.follows = follows
        self.reason = reason
        """What happened, to follow the host's name in a sentence."""
        self.pause_s = pause_s
        self.error = error
        """What the host itself said."""
