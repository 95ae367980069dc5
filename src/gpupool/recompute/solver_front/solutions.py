"""Every partial proof is worked on once: who asks again is answered from memory, or waits for the same work.

Farmers broadcast to every solver that they know, and may know one front under two names. Work goes on when whoever
asked has gone: a farmer that connects anew still wants the answer, and it will not ask again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from gpupool.core.errors import BusyError
from gpupool.recompute.solver_front.attempts import Asked
from gpupool.recompute.solver_front.dispatching import Course
from gpupool.solvers.questions import SolveQuestion

KEPT: Final = 256
MOST_IN_FLIGHT: Final = 256
Find = Callable[[Asked, float, Course], Awaitable[bytes]]
"""Finds a proof before a deadline."""


class TooManyError(BusyError):
    """As many partial proofs are being solved as may be."""

    code = "front_busy"
    default_remedy = "A farm asks a few times a day; look who asks so often in the log of the solver front."


@dataclass(slots=True)
class Work:
    """One question that somebody works on."""

    task: "asyncio.Task[bytes]"
    course: Course = field(default_factory=Course)


class Solutions:
    """Questions under way, and the latest answers."""

    def __init__(self, find: Find, clock: Callable[[], float], limit_seconds: float) -> None:
        """``limit_seconds``: for each question, from its first asker on."""
        self._find, self._clock, self._limit = find, clock, limit_seconds
        self._known: OrderedDict[SolveQuestion, bytes] = OrderedDict()
        self._under_way: dict[SolveQuestion, Work] = {}

    @property
    def under_way(self) -> int:
        """Questions that are worked on."""
        return len(self._under_way)

    def known(self, question: SolveQuestion) -> bytes | None:
        """Return the answer to a question that was answered lately."""
        proof = self._known.get(question)
        if proof is not None:
            self._known.move_to_end(question)
        return proof

    def work_on(self, asked: Asked) -> tuple[Work, bool]:
        """Return the work on a question, begun now or before (True); raises TooManyError."""
        work = self._under_way.get(asked.question)
        if work is not None:
            return work, True
        if len(self._under_way) >= MOST_IN_FLIGHT:
            raise TooManyError
        course = Course()
        task = asyncio.create_task(self._work(asked, course))
        work = self._under_way[asked.question] = Work(task, course)
        task.add_done_callback(lambda _: self._under_way.pop(asked.question))
        return work, False

    async def drain(self, seconds: float) -> bool:
        """Wait until nothing is under way, at most ``seconds``; cancel what is left then and return False."""
        tasks = [work.task for work in self._under_way.values()]
        if not tasks:
            return True
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return not late

    async def _work(self, asked: Asked, course: Course) -> bytes:
        proof = await self._find(asked, self._clock() + self._limit, course)
        self._known[asked.question] = proof
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return proof
