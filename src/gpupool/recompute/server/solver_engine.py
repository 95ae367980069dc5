"""The engine for v2 plots: Chia's own library in processes of its own, behind the port of every engine."""

import threading
import time

from gpupool.recompute.server.engine import Checkpoint
from gpupool.solvers.pool import SolverCapability, SolverPool
from gpupool.solvers.questions import SolveQuestion, core_seconds


class PooledSolver:
    """A pool of solvers that remembers how long its answers took."""

    def __init__(self, solvers: int) -> None:
        """Raises SolverLostError where chia_rs cannot be used here."""
        self._pool = SolverPool(solvers)
        self._capability = self._pool.capability()
        self._lock = threading.Lock()
        self._seconds: dict[tuple[int, int], float] = {}

    def solve(self, question: SolveQuestion, checkpoint: Checkpoint) -> bytes:
        """Return the whole proof; see `SolverEngine.solve`."""
        began = time.perf_counter()
        proof = self._pool.solve(question, checkpoint)
        with self._lock:
            self._seconds[question.k, question.strength] = time.perf_counter() - began
        return proof

    def seconds(self, question: SolveQuestion) -> float:
        """See `SolverEngine.seconds`."""
        with self._lock:
            known = self._seconds.get((question.k, question.strength))
        if known is not None:
            return known
        return core_seconds(question.k, question.strength) / self._capability.cores

    def capability(self) -> SolverCapability:
        """See `SolverEngine.capability`."""
        return self._capability

    def close(self) -> None:
        """End the solvers."""
        self._pool.close()


def checked_engine(solvers: str = "1") -> PooledSolver:
    """Return an engine whose library has been loaded.

    ``solvers``: how many questions are worked on at once, as text since it comes from a command line.
    """
    return PooledSolver(int(solvers))
