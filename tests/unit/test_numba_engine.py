"""The CPU engine behind its port: verified answers, what they cost, and what it says of itself."""

import itertools
import threading

import pytest

import mainnet
from gpupool.core.errors import DeadlineError, InvalidInputError, UnsupportedError
from gpupool.pos.costs import cost
from gpupool.pos.layout import layout
from gpupool.pos.quality import plot_order, proof_pair
from gpupool.pos.truncation import truncate, truncate_twice
from gpupool.recompute.demo import KnownProof
from gpupool.recompute.server.engine import WrongAnswerError
from gpupool.recompute.server.numba_engine import NumbaEngine
from gpupool.recompute.server.questions import Question

PROOF = mainnet.K32[3]


def go_on() -> None:
    pass


def proof_question(proof: KnownProof, bits: int, challenge: bytes | None = None) -> Question:
    return Question(proof.plot_id, bits - 15, truncate(proof.xs, bits), challenge or proof.challenge, proof.k)


def quality_question(proof: KnownProof, bits: int) -> Question:
    chosen = set(proof_pair(proof.xs, proof.challenge))
    four = next(four for i in range(0, 64, 4) if chosen <= set(four := proof.xs[i : i + 4]))
    return Question(proof.plot_id, bits - 15, truncate_twice(four, bits), proof.challenge, proof.k)


@pytest.fixture(scope="module")
def engine() -> NumbaEngine:
    return NumbaEngine(threads=2)


@pytest.mark.parametrize("bits", [14, 16, 19, 22])
def test_proofs_and_qualities_are_found_by_level_or_by_bits(engine: NumbaEngine, bits: int) -> None:
    assert engine.proof(proof_question(PROOF, bits), go_on) == PROOF.xs
    assert engine.quality(quality_question(PROOF, bits), go_on) == proof_pair(PROOF.xs, PROOF.challenge)


def test_a_proof_is_found_from_what_a_plot_stores(engine: NumbaEngine) -> None:
    """A plot sorts its tables, so siblings come in either order; this is how a stock harvester asks."""
    stored = truncate(plot_order(PROOF.xs), 16)
    assert stored != truncate(PROOF.xs, 16)
    for challenge in (PROOF.challenge, None):
        assert engine.proof(Question(PROOF.plot_id, 1, stored, challenge, 32), go_on) == PROOF.xs


def test_plots_of_33_bits_are_answered(engine: NumbaEngine) -> None:
    for proof in mainnet.K33:
        assert engine.proof(proof_question(proof, 16), go_on) == proof.xs
        assert engine.quality(quality_question(proof, 17), go_on) == proof_pair(proof.xs, proof.challenge)


def test_questions_of_many_threads_are_answered_at_once(engine: NumbaEngine) -> None:
    answers: dict[int, tuple[int, ...]] = {}

    def ask(index: int) -> None:
        answers[index] = engine.proof(proof_question(mainnet.K32[index], 16 + index % 3), go_on)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[index] for index in range(6)] == [proof.xs for proof in mainnet.K32[:6]]


@pytest.mark.parametrize("bits", [17, 22])
def test_a_question_stops_where_its_checkpoint_says(engine: NumbaEngine, bits: int) -> None:
    calls = itertools.count()

    def expired() -> None:
        if next(calls) >= 2:
            raise DeadlineError

    with pytest.raises(DeadlineError):
        engine.proof(proof_question(PROOF, bits), expired)
    assert next(calls) < 8
    assert engine.quality(quality_question(PROOF, 16), go_on) == proof_pair(PROOF.xs, PROOF.challenge)


def test_an_answer_that_does_not_verify_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = NumbaEngine()
    wrong = (PROOF.xs[0] ^ 1, *PROOF.xs[1:])
    monkeypatch.setattr(broken.new_decompressor(), "recover_proof", lambda *_: wrong, raising=True)
    with pytest.raises(WrongAnswerError):
        broken.proof(proof_question(PROOF, 16), go_on)


def test_a_quality_needs_its_challenge(engine: NumbaEngine) -> None:
    question = quality_question(PROOF, 16)
    with pytest.raises(InvalidInputError, match="challenge"):
        engine.quality(Question(question.plot_id, 1, question.line_points, None), go_on)


@pytest.mark.parametrize("level", [-15, 10])
def test_what_cannot_be_answered_has_no_cost(engine: NumbaEngine, level: int) -> None:
    question = Question(PROOF.plot_id, level, (1,) * 32, PROOF.challenge)
    with pytest.raises(UnsupportedError):
        engine.cost("proof", question)
    with pytest.raises(UnsupportedError):
        engine.proof(question, go_on)


def test_costs_grow_with_the_level_and_memory_does_not_beyond_7() -> None:
    levels = [cost("proof", bits, 32) for bits in range(16, 25)]
    values = [one.values for one in levels]
    assert values == sorted(values)
    assert values[0] == 64 << 16
    assert values[6] == 64 << 22
    assert values[8] == 4 * (64 << 24), "four passes"
    assert cost("quality", 20, 32).values == 4 << 20
    assert levels[6].memory_bytes < 120 * 10**6
    assert levels[0].memory_bytes < 10 << 20
    assert levels[8].memory_bytes < 300 * 10**6
    assert layout(32, 24).cell_bytes < 1.1 * layout(32, 22).cell_bytes


def test_an_engine_says_what_it_can_and_how_fast_it_was() -> None:
    engine = NumbaEngine()
    assert engine.capability().values_a_second == {}
    engine.proof(proof_question(PROOF, 16), go_on)
    told = engine.capability()
    assert (told.k, told.levels) == (range(18, 41), range(1, 8))
    assert list(told.values_a_second) == [("proof", 32, 16)]
    assert told.values_a_second["proof", 32, 16] > 0
