"""Partial proofs of real v2 plots are completed by Chia's own library, in a process that can be given up."""

import os
import signal
import sys
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count

import chia_rs
import pytest
from chia_rs.sized_bytes import bytes32
from chia_rs.sized_ints import uint8

import v2_plots
from gpupool.core.errors import DeadlineError, InvalidInputError, UnsupportedError
from gpupool.core.processes import identify
from gpupool.solvers.questions import SolveQuestion, UnsolvedError
from gpupool.solvers.solver import Solver, SolverLostError


@pytest.fixture
def solver() -> Iterator[Solver]:
    solver = Solver(cores=1)
    yield solver
    solver.close()


def pid_of(solver: Solver) -> int:
    assert solver.version
    assert solver._process is not None
    return solver._process.pid


@pytest.mark.parametrize("strength", [2, 3])
def test_partial_proofs_are_completed(solver: Solver, strength: int) -> None:
    for question in v2_plots.questions(strength):
        proof = solver.solve(question)
        partial = chia_rs.PartialProof.from_bytes(question.partial_proof)
        plot_id = bytes32(question.plot_id)
        assert chia_rs.quality_string_from_proof(plot_id, question.k, strength, proof) == partial.get_string(
            uint8(strength)
        )
    assert solver.version == version("chia_rs")


def test_what_cannot_be_completed_is_told_and_the_solver_goes_on(solver: Solver) -> None:
    good = v2_plots.questions()[0]
    with pytest.raises(UnsolvedError):
        solver.solve(SolveQuestion(good.partial_proof, bytes(32), good.k, good.strength))
    before = pid_of(solver)
    assert solver.solve(good)
    assert pid_of(solver) == before


def test_a_question_is_given_up_by_ending_its_process(solver: Solver) -> None:
    asked, question = count(), v2_plots.questions()[0]
    hard = SolveQuestion(question.partial_proof, question.plot_id, 28, 8)
    before = pid_of(solver)

    def checkpoint() -> None:
        if next(asked) == 2:
            raise DeadlineError

    with pytest.raises(DeadlineError):
        solver.solve(hard, checkpoint)
    assert identify(before) is None
    assert solver.solve(question)


def test_a_solver_that_died_is_told_and_replaced(solver: Solver) -> None:
    question = v2_plots.questions()[0]
    hard = SolveQuestion(question.partial_proof, question.plot_id, 28, 8)
    pid, asked = pid_of(solver), count()

    def checkpoint() -> None:
        if next(asked) == 1:
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(SolverLostError):
        solver.solve(hard, checkpoint)
    assert solver.solve(question)
    assert pid_of(solver) != pid


def test_without_the_library_there_is_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SolverLostError, match="chia_rs is not installed"):
        _ = Solver().version


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"partial_proof": bytes(127)}, InvalidInputError),
        ({"plot_id": bytes(31)}, InvalidInputError),
        ({"k": 17}, UnsupportedError),
        ({"k": 34}, UnsupportedError),
        ({"strength": 1}, UnsupportedError),
        ({"strength": 18}, UnsupportedError),
    ],
)
def test_bad_questions_are_refused(change: dict[str, object], fault: type[Exception]) -> None:
    fields = {"partial_proof": bytes(128), "plot_id": bytes(32), "k": 28, "strength": 2}
    with pytest.raises(fault):
        SolveQuestion(**{**fields, **change})  # type: ignore[arg-type]


def test_strength_and_size_cost() -> None:
    def cost(k: int, strength: int) -> float:
        return SolveQuestion(bytes(128), bytes(32), k, strength).cost_seconds

    costs = [cost(28, strength) for strength in range(2, 18)]
    assert costs == sorted(costs)
    assert [round(cost(k, 2), 1) for k in (18, 20, 22, 24, 28)] == [0.1, 0.1, 0.2, 0.5, 3.7]


def test_a_proof_is_checked_without_solving(solver: Solver) -> None:
    question = v2_plots.questions()[0]
    proof = solver.solve(question)
    assert len(proof) == question.proof_bytes
    solver.check(question, proof)
    for wrong in (bytes([proof[0] ^ 0x80]) + proof[1:], proof[:-1], bytes(question.proof_bytes), b"\1"):
        with pytest.raises(UnsolvedError):
            solver.check(question, wrong)


@pytest.mark.parametrize("cores", [-1, 1025])
def test_the_number_of_cores_has_limits(cores: int) -> None:
    with pytest.raises(InvalidInputError):
        Solver(cores)
