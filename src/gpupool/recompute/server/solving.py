"""Solutions of v2 plots beside the look-ups of v1 plots: a queue and a crew of their own, and what each costs the other.

A solution takes every core for seconds, a look-up one for milliseconds, and both have deadlines. Solvers run with two
thirds of the weight that look-ups have (`solvers.child.NICENESS`), so neither starves, and each queue counts on the
other's work when it says what it can do in time. Who owns no v2 plots pays nothing: processes start with the first
request, or with the server where it was told how many.
"""

import asyncio
from typing import Final

import structlog

from gpupool.contracts.recompute import QueueView, SolverView, StrengthRate
from gpupool.core.clock import Clock
from gpupool.core.errors import UnsupportedError
from gpupool.recompute.server.capacity import usable_cores
from gpupool.recompute.server.crew import Crew, ProcessCrew
from gpupool.recompute.server.questions import read_solve_question
from gpupool.recompute.server.rates import Work
from gpupool.recompute.server.staffing import WorkerPlan
from gpupool.recompute.server.work import WorkQueue
from gpupool.solvers.child import PACKAGE
from gpupool.solvers.questions import MAINNET_K, STRENGTH_RANGE, SolveQuestion

log = structlog.get_logger(__name__)
ENGINE: Final = "gpupool.recompute.server.solver_engine:checked_engine"
SHARE: Final = 655 / (655 + 1024)
"""Of a core that a solver gets while a look-up wants it too, as Linux weighs niceness 2 against 0."""


class WrongReleaseError(UnsupportedError):
    """The plot was made for another release of chia_rs than the one here."""

    code = "wrong_release"
    default_remedy = (
        "Ask a server that has the farmer's release, or install that one here and restart the server."
    )


class NoSolverError(UnsupportedError):
    """This server solves no partial proofs of v2 plots."""

    code = "no_solver"
    default_remedy = (
        "Install the farmer's release there (pip install 'gpupool[solver]' chia_rs==0.48.0), restart it."
    )


def solver_worker(solvers: int) -> WorkerPlan:
    """Return the worker that works on so many solutions at once, with all cores."""
    return WorkerPlan(name="v2 solver", engine=PACKAGE, factory=f"{ENGINE}:{solvers}", threads=solvers)


class SolverDesk:
    """What a server does for v2 plots."""

    def __init__(
        self, crew: Crew, lookups: WorkQueue, room: int, release: str, clock: Clock | None = None
    ) -> None:
        """``lookups`` is the queue that shares the cores; from now on it counts on this one's work."""
        self.queue = WorkQueue(crew, room, clock)
        self.release = release
        self._lookups = lookups
        self._begun = not isinstance(crew, ProcessCrew)
        lookups.slowdown = self._of_lookups
        self.queue.slowdown = self._of_solutions

    def read(self, body: bytes) -> SolveQuestion:
        """Return the question of a request, and see that somebody works; raises WrongReleaseError or as the reader."""
        question, wanted = read_solve_question(body)
        if wanted != self.release:
            raise WrongReleaseError(
                f"The plot is of chia_rs {wanted}, and this server has {self.release}: they cannot read each other's plots."
            )
        self.begin()
        return question

    def view(self) -> SolverView:
        """Return what can be asked, how fast it is, and how busy."""
        queue, place = self.queue, self.queue.crew.places[0]
        return SolverView(
            chia_rs=self.release,
            cores=usable_cores(),
            workers=queue.slots,
            state=place.state if self._begun else "idle",
            why=place.why,
            queue=QueueView(running=queue.running, waiting=queue.waiting, room=queue.room),
            rates=[self._rate(strength, place.plan) for strength in STRENGTH_RANGE],
        )

    async def end(self) -> None:
        """End the processes; what they still do is lost."""
        if isinstance(self.queue.crew, ProcessCrew):
            await self.queue.crew.end()

    def _rate(self, strength: int, plan: WorkerPlan) -> StrengthRate:
        work, rates = Work("solve", strength, MAINNET_K), self.queue.rates
        return StrengthRate(
            strength=strength,
            seconds=round(rates.expected(work, plan.factory), 3),
            measured=rates.best(work, plan.factory) is not None,
        )

    def begin(self) -> None:
        """Start the processes, unless they were before."""
        crew = self.queue.crew
        if not self._begun and isinstance(crew, ProcessCrew):
            self._begun = True
            crew.begun.add_done_callback(_tell)
            crew.begin()

    def _of_lookups(self) -> float:
        return 1 / (1 - SHARE) if self.queue.running else 1.0

    def _of_solutions(self) -> float:
        running = sum(len(place.tickets) for place in self._lookups.crew.places if place.plan.kind == "cpu")
        return 1 / (1 - (1 - SHARE) * min(1.0, running / usable_cores()))


def _tell(begun: "asyncio.Future[None]") -> None:
    """Log how the solver's first start went; the server does not depend on it."""
    error = None if begun.cancelled() else begun.exception()
    if error is not None:
        log.error("solver_not_usable", reason=str(error))
