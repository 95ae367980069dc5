"""Whether a worker's answer is the proof: its length always, its quality where this machine has the same chia_rs.

The quality covers a quarter of a proof's bits. What was made up, mixed up or computed by another release is found; a
proof forged with knowledge of its plot would not be, and would cost the farmer as much as no answer.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from gpupool.balancing import Outcome
from gpupool.core.errors import DeadlineError
from gpupool.recompute.solver_front.attempts import AttemptError
from gpupool.solvers.questions import SolveQuestion, UnsolvedError
from gpupool.solvers.solver import Solver, SolverLostError, installed_release

_LOOKS: Final = 200
"""Of 50 ms each that a check may take, the start of its process included."""
log = structlog.get_logger(__name__)


class Checker:
    """Judges answers."""

    def __init__(self, release: str) -> None:
        self.sees_quality = installed_release() == release
        """Whether chia_rs of the farmers' release is here."""
        self._solver = Solver(1)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="check")

    def warm_up(self) -> None:
        """Load the library now, so that the first answer does not wait for it; goes on beside everything else."""
        if self.sees_quality:
            self._thread.submit(self._load)

    async def check(self, question: SolveQuestion, proof: bytes) -> None:
        """Raise AttemptError where ``proof`` cannot be the answer."""
        if len(proof) != question.proof_bytes:
            raise AttemptError(
                Outcome.WRONG, f"its proof has {len(proof)} bytes instead of {question.proof_bytes}"
            )
        if self.sees_quality:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._check_quality, question, proof)

    def close(self) -> None:
        """End what checks."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._solver.close()

    def _load(self) -> None:
        try:
            log.info("answers_are_checked", chia_rs=self._solver.version)
        except SolverLostError as error:
            log.warning("answers_not_checked", why=error.message, remedy=error.remedy)

    def _check_quality(self, question: SolveQuestion, proof: bytes) -> None:
        looks = iter(range(_LOOKS))

        def checkpoint() -> None:
            if next(looks, None) is None:
                raise DeadlineError

        try:
            self._solver.check(question, proof, checkpoint)
        except UnsolvedError as error:
            raise AttemptError(
                Outcome.WRONG, "its proof has another quality than the partial proof"
            ) from error
        except (SolverLostError, DeadlineError) as error:
            # The length was right. A farm does not lose a block because this machine cannot look closer.
            log.warning("answer_not_checked", why=error.message, remedy=error.remedy)
