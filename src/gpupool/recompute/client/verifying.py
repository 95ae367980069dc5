"""Every answer is judged where it arrives: a server may be broken or lie, and a wrong proof costs more than none.

The judge is `gpupool.pos.verification`, which needs numba; it is imported and compiled by `Verifier.prepare`.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.pos.errors import InvalidProofError
from gpupool.pos.line_points import encode, line_point_limit, readings
from gpupool.pos.truncation import stands_on
from gpupool.recompute.client.questions import Question
from gpupool.recompute.demo import known_proof

PAIR: Final = 2


class Verifier:
    """Judges answers, about 1 ms each; `prepare` must have ended before."""

    def __init__(self) -> None:
        self._verify_proof: Callable[[bytes, int, Sequence[int], bytes], bytes] | None = None
        self._verify_tables: Callable[[bytes, int, Sequence[int]], int] | None = None

    def prepare(self) -> None:
        """Import and compile the judge, and let it judge a known proof; seconds at the very first time.

        Raises EnvironmentProblemError where numba is not installed.
        """
        if find_spec("numba") is None:
            raise EnvironmentProblemError(
                "The recompute client verifies every answer, for which it needs numba, which is not installed.",
                remedy="Install it: pip install 'gpupool[recompute]'.",
            )
        from gpupool.pos.verification import verify_proof, verify_tables

        known = known_proof()
        verify_proof(known.plot_id, known.k, known.xs, known.challenge)
        self._verify_proof, self._verify_tables = verify_proof, verify_tables

    def check(self, question: Question, numbers: tuple[int, ...]) -> None:
        """Raise InvalidProofError where ``numbers`` do not answer the question."""
        if question.kind == "proof":
            self._check_proof(question, numbers)
        else:
            self._check_quality(question, numbers)

    def _check_proof(self, question: Question, xs: tuple[int, ...]) -> None:
        if not stands_on(xs, question.bits, question.line_points):
            raise InvalidProofError("The proof is not one for these line points.")
        if question.challenge is None:
            self._tables(question, xs)
            return
        if self._verify_proof is None:
            raise RuntimeError("the verifier was not prepared")
        self._verify_proof(question.plot_id, question.k, xs, question.challenge)

    def _check_quality(self, question: Question, pair: tuple[int, ...]) -> None:
        """The pair must come from the line point, be the one the challenge picks, and match in table 2."""
        if len(pair) != PAIR or pair[0] > pair[1]:
            raise InvalidProofError("A quality is a pair of x, the smaller one first.")
        cut = encode(pair[0] >> question.bits, pair[1] >> question.bits)
        limit = 1 << question.k - question.bits
        others = _siblings(question.line_points[0], cut, line_point_limit(limit))
        if not any(_may_be_picked(question, pair[1] >> question.bits, other, limit) for other in others):
            raise InvalidProofError("The pair is not the one that the challenge picks from this line point.")
        # The pair comes sorted by size, but only the order of the proof matches.
        try:
            self._tables(question, pair)
        except InvalidProofError:
            self._tables(question, pair[::-1])

    def _tables(self, question: Question, xs: tuple[int, ...]) -> None:
        if self._verify_tables is None:
            raise RuntimeError("the verifier was not prepared")
        self._verify_tables(question.plot_id, question.k, xs)


def _siblings(line_point: int, cut: int, limit: int) -> list[int]:
    """Return what may stand beside the truncated pair ``cut`` in a line point of line points."""
    try:
        pairs = readings(line_point, limit)
    except InvalidInputError:
        return []
    return [b if a == cut else a for a, b in pairs if cut in {a, b}]


def _may_be_picked(question: Question, larger: int, other: int, limit: int) -> bool:
    """Tell whether the challenge can pick our pair, whose larger x begins with ``larger``, and not its sibling.

    A plot orders pairs by the larger x; where both begin alike, the dropped bits decide, which nobody has here.
    """
    if question.challenge is None:
        return False
    picks_second = bool(question.challenge[-1] & 1)
    return any(
        larger == sibling or (larger > sibling) == picks_second for sibling, _ in readings(other, limit)
    )
