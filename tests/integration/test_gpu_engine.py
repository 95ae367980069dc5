"""The engine on a card, with an OpenCL device that is a CPU: the answers of the CPU engine, verified, or a fault."""

import pytest

import mainnet
from gpupool.devices.recovery.cards import CPU_AS_CARD
from gpupool.devices.recovery.quads import QuadJoiner
from gpupool.pos.errors import NoProofError
from gpupool.pos.quality import proof_pair
from gpupool.pos.tables import Entries
from gpupool.recompute.demo import KnownProof, proof_request, quality_request
from gpupool.recompute.server.engine import WrongAnswerError
from gpupool.recompute.server.gpu_engine import CardEngine, checked_engine
from gpupool.recompute.server.numba_engine import SelfTestError
from gpupool.recompute.server.questions import Question, read_proof_question, read_quality_question


def go_on() -> None:
    pass


def proof_question(proof: KnownProof, level: int) -> Question:
    return read_proof_question(proof_request(proof, level).model_dump_json().encode())


def quality_question(proof: KnownProof, level: int) -> Question:
    return read_quality_question(quality_request(proof, level).model_dump_json().encode())


@pytest.fixture(scope="module")
def engine() -> CardEngine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CPU_AS_CARD, "1")
        return checked_engine("OpenCL:0")


@pytest.mark.parametrize("level", [1, 2])
def test_proofs_come_back(engine: CardEngine, level: int) -> None:
    for proof in mainnet.K32[5:7]:
        assert engine.proof(proof_question(proof, level), go_on) == proof.xs


@pytest.mark.slow
def test_a_proof_comes_back_from_level_3(engine: CardEngine) -> None:
    """PoCL takes seconds for what a card does in milliseconds."""
    proof = mainnet.K32[5]
    assert engine.proof(proof_question(proof, 3), go_on) == proof.xs


@pytest.mark.parametrize("level", [1, 2, 3])
def test_qualities_come_back(engine: CardEngine, level: int) -> None:
    proof = mainnet.K32[7]
    assert engine.quality(quality_question(proof, level), go_on) == proof_pair(proof.xs, proof.challenge)


def test_what_is_not_there_is_not_found(engine: CardEngine) -> None:
    proof, other = mainnet.K32[5], mainnet.K32[6]
    question = proof_question(proof, 1)
    stranger = Question(
        **{name: getattr(question, name) for name in question.__slots__} | {"plot_id": other.plot_id}
    )
    with pytest.raises(NoProofError):
        engine.proof(stranger, go_on)


def test_a_card_that_lies_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It turns one bit of one x, as failing memory does."""
    monkeypatch.setenv(CPU_AS_CARD, "1")
    engine = checked_engine("OpenCL:0")
    honest = QuadJoiner.join

    def lying(self: QuadJoiner, *arguments: object) -> list[Entries]:
        found = honest(self, *arguments)  # type: ignore[arg-type]
        found[3].xs[:, 2] ^= 1
        return found

    monkeypatch.setattr(QuadJoiner, "join", lying)
    with pytest.raises(WrongAnswerError):
        engine.proof(proof_question(mainnet.K32[5], 1), go_on)
    with pytest.raises((SelfTestError, WrongAnswerError)):
        checked_engine("OpenCL:0")
