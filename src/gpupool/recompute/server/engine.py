"""What the server asks of whoever computes; the server itself knows neither numba nor threads' memory."""

from collections.abc import Callable
from typing import Protocol

from gpupool.core.errors import GpupoolError
from gpupool.recompute.server.questions import Question

Checkpoint = Callable[[], None]
"""Called between units of work; stops it by raising."""


class WrongAnswerError(GpupoolError):
    """The engine found an answer that does not verify; it was not sent."""

    code = "wrong_answer"
    default_remedy = "Take this server out of use: its memory or its compiled code may be damaged."


class Engine(Protocol):
    """Answers questions, one at a time in each calling thread; every answer is verified."""

    def proof(self, question: Question, checkpoint: Checkpoint) -> tuple[int, ...]:
        """Return the 64 x; raises NoProofError, InvalidInputError, WrongAnswerError or the checkpoint's error."""
        ...

    def quality(self, question: Question, checkpoint: Checkpoint) -> tuple[int, int]:
        """Return the pair of x, smaller first; errors as for `proof`."""
        ...
