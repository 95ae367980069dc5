"""The v2 engine: a few solvers side by side, each a process, lent to whoever has a question.

chia_rs holds its process' interpreter and takes every core it sees, so the cores are divided among the solvers. One that
dies over a question gives it to another one, once.
"""

import os
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from gpupool.core.errors import InvalidInputError, UnsupportedError
from gpupool.solvers.questions import K_RANGE, STRENGTH_RANGE, SolveQuestion
from gpupool.solvers.solver import Checkpoint, Solver, SolverLostError

_LOOK_SECONDS: Final = 0.05
MOST_SOLVERS: Final = 256


@dataclass(frozen=True, slots=True)
class SolverCapability:
    """What a pool of solvers can be asked."""

    version: str
    """Release of chia_rs; a farmer with another one must ask elsewhere."""
    k: range
    strength: range
    solvers: int
    """Questions worked on at once."""
    cores: int
    """Of each solver."""


class SolverPool:
    """Solvers for any number of threads."""

    def __init__(self, solvers: int = 1, cores: int | None = None) -> None:
        """``cores``: of each solver; by default the machine's, divided. Raises InvalidInputError."""
        if not 1 <= solvers <= MOST_SOLVERS:
            raise InvalidInputError(f"A pool has 1 to {MOST_SOLVERS} solvers, not {solvers}.")
        self._cores = max(1, (os.cpu_count() or 1) // solvers) if cores is None else cores
        self._all = [Solver(self._cores) for _ in range(solvers)]
        self._free: queue.SimpleQueue[Solver] = queue.SimpleQueue()
        for solver in self._all:
            self._free.put(solver)

    def capability(self) -> SolverCapability:
        """Return what can be asked; starts a solver. Raises SolverLostError where chia_rs is not there."""
        with self._lent(lambda: None) as solver:
            return SolverCapability(solver.version, K_RANGE, STRENGTH_RANGE, len(self._all), self._cores)

    def solve(
        self,
        question: SolveQuestion,
        checkpoint: Checkpoint = lambda: None,
        release: str | None = None,
    ) -> bytes:
        """Return the whole proof, waiting for a free solver first; see `Solver.solve`.

        ``checkpoint`` is called while waiting too. A question whose solver dies is tried a second time. ``release`` of
        chia_rs that the asker's plots are of, where known: another one is refused with UnsupportedError before any
        work, since it could only fail.
        """
        with self._lent(checkpoint) as solver:
            if release is not None and release != solver.version:
                raise UnsupportedError(
                    f"This solver has chia_rs {solver.version}; the plot is of {release}.",
                    remedy="Ask a solver with the same release, or install it here.",
                )
            try:
                return solver.solve(question, checkpoint)
            except SolverLostError:
                return solver.solve(question, checkpoint)

    def close(self) -> None:
        """End all solvers; what they do is lost."""
        for solver in self._all:
            solver.close()

    @contextmanager
    def _lent(self, checkpoint: Checkpoint) -> Iterator[Solver]:
        while True:
            checkpoint()
            try:
                solver = self._free.get(timeout=_LOOK_SECONDS)
                break
            except queue.Empty:
                continue
        try:
            yield solver
        finally:
            self._free.put(solver)
