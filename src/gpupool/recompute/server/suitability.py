"""Which worker may take a question: small ones and those that cards failed over go to the CPU. Pure."""

from dataclasses import dataclass
from typing import Final

from gpupool.pos.parameters import K
from gpupool.recompute.server.questions import Asking, Question
from gpupool.recompute.server.staffing import WorkerPlan
from gpupool.recompute.server.tickets import Ticket

_PAIRS_LOG: Final[dict[Asking, int]] = {"proof": 6, "quality": 2}
"""Base-2 logarithm of how many buckets are computed: 64 for a proof, 4 for a quality."""
LEAST_BITS: Final = 10
"""Dropped bits of the smallest buckets that the kernels join."""
CARD_TRIES: Final = 2
"""Cards that may fail over one question; then it is the CPU's."""


@dataclass(frozen=True, slots=True)
class Suitability:
    """The rules of one server."""

    least_log_entries: int = 21
    """Base-2 logarithm of the f1 entries from which on a question is worth a card."""

    def may(self, plan: WorkerPlan, ticket: Ticket, *, with_cpu: bool) -> bool:
        """Tell whether a worker takes a question; ``with_cpu``: a CPU worker takes questions, too."""
        if plan.kind == "cpu":
            return True
        question = ticket.question
        if not isinstance(question, Question) or question.k != K or question.bits < LEAST_BITS:
            return False
        if not with_cpu:
            return True
        if ticket.doubted is not None or ticket.tries >= CARD_TRIES or plan.factory in ticket.avoided:
            return False
        return log_entries(ticket.kind, question) >= self.least_log_entries


def log_entries(kind: Asking, question: Question) -> int:
    """Return the base-2 logarithm of the f1 entries that a question needs."""
    return _PAIRS_LOG[kind] + question.bits
