"""Several questions at once, solvers that die, and askers that do not wait for ever."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import count

import pytest

import v2_plots
from gpupool.core.errors import DeadlineError, InvalidInputError, UnsupportedError
from gpupool.solvers.pool import SolverPool
from gpupool.solvers.questions import SolveQuestion
from gpupool.solvers.solver import Solver, SolverLostError


@pytest.fixture(scope="module")
def pool() -> Iterator[SolverPool]:
    pool = SolverPool(2, cores=1)
    yield pool
    pool.close()


def test_more_questions_than_solvers_are_all_answered(pool: SolverPool) -> None:
    questions = v2_plots.questions() * 3
    with ThreadPoolExecutor(6) as threads:
        proofs = list(threads.map(pool.solve, questions))
    assert proofs == [pool.solve(question) for question in v2_plots.questions()] * 3


def test_it_tells_its_release(pool: SolverPool) -> None:
    found = pool.capability()
    assert (found.version, found.solvers, found.cores) == (version("chia_rs"), 2, 1)
    assert 28 in found.k
    assert 2 in found.strength


def test_plots_of_another_release_are_refused_before_any_work(pool: SolverPool) -> None:
    question = v2_plots.questions()[0]
    assert pool.solve(question, release=version("chia_rs"))
    with pytest.raises(UnsupportedError, match=r"the plot is of 0\.48\.0"):
        pool.solve(question, release="0.48.0")


def dying(monkeypatch: pytest.MonkeyPatch, deaths: int) -> list[int]:
    """Kill the process of so many questions in the middle of their work."""
    killed: list[int] = []
    honest, turns = Solver._wait, count()

    def wait(self: Solver, checkpoint: object) -> dict[str, object]:
        if next(turns) < deaths and self._process is not None:
            killed.append(self._process.pid)
            os.kill(self._process.pid, signal.SIGKILL)
        return honest(self, checkpoint)  # type: ignore[arg-type]

    monkeypatch.setattr(Solver, "_wait", wait)
    return killed


def test_a_question_survives_the_death_of_its_solver(
    pool: SolverPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = v2_plots.questions()[0]
    right = pool.solve(question)
    killed = dying(monkeypatch, 1)
    hard = SolveQuestion(question.partial_proof, question.plot_id, question.k, question.strength)
    assert pool.solve(hard) == right
    assert len(killed) == 1


def test_a_question_that_kills_every_solver_ends(pool: SolverPool, monkeypatch: pytest.MonkeyPatch) -> None:
    question = v2_plots.questions()[0]
    with monkeypatch.context() as patch:
        killed = dying(patch, 2)
        hard = SolveQuestion(question.partial_proof, question.plot_id, 28, 8)
        with pytest.raises(SolverLostError):
            pool.solve(hard)
    assert len(set(killed)) == 2
    assert pool.solve(question)


def test_who_waits_for_a_solver_may_leave() -> None:
    pool, question = SolverPool(1, cores=1), v2_plots.questions()[0]
    hard = SolveQuestion(question.partial_proof, question.plot_id, 28, 8)
    begun, enough = threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        if enough.is_set():
            raise DeadlineError

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(pool.solve, hard, busy)
        assert begun.wait(30)
        turns = count()

        def impatient() -> None:
            if next(turns) == 3:
                raise DeadlineError

        with pytest.raises(DeadlineError):
            pool.solve(question, impatient)
        enough.set()
        assert isinstance(first.exception(30), DeadlineError)
    assert pool.solve(question)
    pool.close()


@pytest.mark.parametrize("solvers", [0, 257])
def test_a_pool_has_a_size(solvers: int) -> None:
    with pytest.raises(InvalidInputError):
        SolverPool(solvers)
