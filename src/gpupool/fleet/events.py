"""Events: what happened, in the order it was committed.

Each state change writes its event in the same transaction (outbox). Delivery is at least once and in order of
``seq``; consumers keep the last ``seq`` they have handled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened."""

    kind: str
    """``noun.verb`` such as ``placement.active``, ``node.unreachable``, ``workload.created``."""
    subject: str
    """Id of the thing it happened to."""
    at: datetime
    data: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    seq: int = 0
    """Set by the store: grows with every event, never reused."""
