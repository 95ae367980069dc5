"""The words that a pool and its users exchange: what a node may take, how a request ended, how a node stands."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How one attempt at one node ended."""

    OK = "ok"
    FAILED = "failed"
    """Refused, reset, closed early, or not understandable."""
    TIMED_OUT = "timed_out"
    """Silent for longer than its limit."""
    WRONG = "wrong"
    """Answered, and the answer was checked and is false."""
    CANCELLED = "cancelled"
    """Given up by this side: the client left, or another node was faster."""


class NodeState(StrEnum):
    """Whether and why a node takes traffic."""

    LIVE = "live"
    STARTING = "starting"
    """Back or new: its share is growing."""
    EJECTED = "ejected"
    DRAINING = "draining"
    QUARANTINED = "quarantined"
    LEAVING = "leaving"
    """No longer listed, with requests still running."""


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What an operator says about a node.

    Attributes:
        weight: > 0; a node of weight 2 is given work as if it were twice as fast as measured.
        concurrency: most requests at once (>= 1); None = no limit.
        learn_up_to: let the limit grow from ``concurrency`` to this while latency stays flat; None = fixed.

    Raises:
        ValueError: a value is out of range, or ``learn_up_to`` is given without ``concurrency`` or below it.
    """

    weight: float = 1.0
    concurrency: int | None = None
    learn_up_to: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"a weight must be greater than 0, not {self.weight}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"a concurrency limit must be at least 1, not {self.concurrency}")
        if self.learn_up_to is not None and (self.concurrency is None or self.learn_up_to < self.concurrency):
            raise ValueError("learn_up_to needs a concurrency limit that is not above it")


@dataclass(frozen=True, slots=True)
class NodeView:
    """How a node stands, for people and metrics; times in seconds, None = not yet known."""

    name: str
    state: NodeState
    reason: str
    weight: float
    outstanding: int
    limit: int | None
    latency: float | None
    p50: float | None
    p99: float | None
    slow: bool
    """Three times slower than it usually is, at the same load."""
    failures_in_row: int
    counts: dict[Outcome, int]
