"""Answers are judged where they arrive: the right one passes, every wrong one is found."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mainnet
from gpupool.contracts.recompute import hexadecimal
from gpupool.pos.errors import InvalidProofError
from gpupool.pos.parameters import dropped_bits
from gpupool.pos.quality import plot_order, proof_pair
from gpupool.pos.truncation import truncate
from gpupool.recompute.client.questions import Question, question_of
from gpupool.recompute.client.verifying import Verifier
from gpupool.recompute.demo import KnownProof, proof_request, quality_request

LEVELS = [1, 3, 5]


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    prepared = Verifier()
    prepared.prepare()
    return prepared


def quality(proof: KnownProof, level: int) -> tuple[Question, tuple[int, int]]:
    return question_of(quality_request(proof, level)), proof_pair(proof.xs, proof.challenge)


@pytest.mark.parametrize("level", LEVELS)
def test_every_right_answer_passes(verifier: Verifier, level: int) -> None:
    for proof in mainnet.K32:
        verifier.check(question_of(proof_request(proof, level)), proof.xs)
        bare = proof_request(proof, level).model_copy(update={"challenge": None})
        verifier.check(question_of(bare), proof.xs)
        stored = hexadecimal(truncate(plot_order(proof.xs), dropped_bits(level)))
        verifier.check(question_of(bare.model_copy(update={"line_points": stored})), proof.xs)
        verifier.check(*quality(proof, level))


@settings(max_examples=60)
@given(index=st.integers(0, 63), bit=st.integers(0, 31), number=st.integers(0, len(mainnet.K32) - 1))
def test_one_wrong_bit_of_a_proof_is_found(verifier: Verifier, index: int, bit: int, number: int) -> None:
    proof = mainnet.K32[number]
    xs = list(proof.xs)
    xs[index] ^= 1 << bit
    with pytest.raises(InvalidProofError):
        verifier.check(question_of(proof_request(proof, 3)), tuple(xs))


@settings(max_examples=60)
@given(index=st.integers(0, 1), bit=st.integers(0, 31), number=st.integers(0, len(mainnet.K32) - 1))
def test_one_wrong_bit_of_a_quality_is_found(verifier: Verifier, index: int, bit: int, number: int) -> None:
    question, pair = quality(mainnet.K32[number], 3)
    wrong = list(pair)
    wrong[index] ^= 1 << bit
    with pytest.raises(InvalidProofError):
        verifier.check(question, tuple(wrong))


def test_a_real_pair_that_the_challenge_does_not_pick_is_found(verifier: Verifier) -> None:
    """The sibling pair comes from the same line point and matches in table 2; only the challenge tells them apart."""
    for proof in mainnet.K32:
        question, pair = quality(proof, 1)
        first = next(i for i in range(0, 64, 4) if set(pair) <= set(proof.xs[i : i + 4]))
        sibling = tuple(sorted(set(proof.xs[first : first + 4]) - set(pair)))
        with pytest.raises(InvalidProofError, match="challenge picks"):
            verifier.check(question, sibling)


def test_a_right_answer_to_another_question_is_found(verifier: Verifier) -> None:
    one, other = mainnet.K32[:2]
    with pytest.raises(InvalidProofError, match="these line points"):
        verifier.check(question_of(proof_request(one, 3)), other.xs)
    with pytest.raises(InvalidProofError):
        verifier.check(quality(one, 3)[0], quality(other, 3)[1])
    swapped = proof_request(one, 3).model_copy(update={"challenge": other.challenge.hex()})
    with pytest.raises(InvalidProofError, match="challenge"):
        verifier.check(question_of(swapped), one.xs)


@pytest.mark.parametrize("numbers", [(), (1,), (2, 1), (1, 2, 3), (1 << 63, 1 << 63), (0, 0)])
def test_an_answer_of_another_shape_is_found(verifier: Verifier, numbers: tuple[int, ...]) -> None:
    with pytest.raises(InvalidProofError):
        verifier.check(question_of(quality_request(mainnet.K32[0], 3)), numbers)
