"""From text to numbers: a request that was read is complete, in range and of a plot that can be recovered."""

from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from gpupool.contracts.problems import describe
from gpupool.contracts.recompute import ProofRequest, QualityRequest, SolutionRequest
from gpupool.core.errors import InvalidInputError
from gpupool.core.nesting import MOST_LEVELS, is_deeper
from gpupool.pos.parameters import BITS_AT_LEVEL_ZERO, K, check_dropped_bits, dropped_bits
from gpupool.solvers.questions import SolveQuestion

Asking = Literal["proof", "quality", "solve"]
"""What can be asked for."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a harvester wants to know of one plot."""

    plot_id: bytes
    level: int
    """Dropped bits less 15: 1 to 7 has a name, others come from plots of other sizes."""
    line_points: tuple[int, ...]
    """32 of pairs for a full proof; 1 or 2 of pairs of pairs for a quality."""
    challenge: bytes | None
    k: int = K

    @property
    def bits(self) -> int:
        """How many low bits of each x are missing."""
        return BITS_AT_LEVEL_ZERO + self.level


AnyQuestion = Question | SolveQuestion


def level_of(question: AnyQuestion) -> int:
    """Return what decides, with k, how much work a question is: the level of its plot, or the strength."""
    return question.strength if isinstance(question, SolveQuestion) else question.level


def numbers_in(question: AnyQuestion) -> int:
    """Return how many numbers a question holds, for those who keep it."""
    return 16 if isinstance(question, SolveQuestion) else len(question.line_points)


def read_proof_question(body: bytes) -> Question:
    """Return the question in the JSON ``body`` of ``POST /v1/proofs``.

    Raises InvalidInputError where it is malformed or nested too deep, and UnsupportedError for plots of another k or level.
    """
    try:
        return _question(ProofRequest.model_validate_json(_shallow(body)))
    except ValidationError as error:
        raise InvalidInputError(f"The request is not valid: {describe(error)}.") from error


def read_quality_question(body: bytes) -> Question:
    """Return the question in the JSON ``body`` of ``POST /v1/qualities``; errors as for `read_proof_question`."""
    try:
        return _question(QualityRequest.model_validate_json(_shallow(body)))
    except ValidationError as error:
        raise InvalidInputError(f"The request is not valid: {describe(error)}.") from error


def read_solve_question(body: bytes) -> tuple[SolveQuestion, str]:
    """Return question and wanted release of chia_rs in the JSON ``body`` of ``POST /v1/solutions``; errors as above."""
    try:
        request = SolutionRequest.model_validate_json(_shallow(body))
    except ValidationError as error:
        raise InvalidInputError(f"The request is not valid: {describe(error)}.") from error
    question = SolveQuestion(
        bytes.fromhex(request.partial_proof), bytes.fromhex(request.plot_id), request.k, request.strength
    )
    return question, request.chia_rs


def _shallow(body: bytes) -> bytes:
    """Return the body; raise InvalidInputError where it is nested deeper than any parser needs to go."""
    if is_deeper(body):
        raise InvalidInputError(f"The request is nested deeper than {MOST_LEVELS} levels.")
    return body


def _question(request: ProofRequest | QualityRequest) -> Question:
    bits = dropped_bits(request.level) if request.level is not None else request.bits or 0
    check_dropped_bits(request.k, bits)
    return Question(
        plot_id=bytes.fromhex(request.plot_id),
        level=bits - BITS_AT_LEVEL_ZERO,
        line_points=tuple(int(line_point, 16) for line_point in request.line_points),
        k=request.k,
        challenge=None if request.challenge is None else bytes.fromhex(request.challenge),
    )
