"""The questions that devices are tried with: the shipped mainnet proof, as plots of each level ask it."""

from typing import Final

from gpupool.pos.costs import Kind
from gpupool.recompute.demo import known_proof, proof_request, quality_request
from gpupool.recompute.server.questions import Question, read_proof_question, read_quality_question

KINDS: Final[tuple[Kind, ...]] = ("quality", "proof")


def known_question(kind: Kind, level: int) -> Question:
    """Return the question of ``level`` (1 to 7) that the shipped proof answers."""
    if kind == "proof":
        return read_proof_question(proof_request(known_proof(), level).model_dump_json().encode())
    return read_quality_question(quality_request(known_proof(), level).model_dump_json().encode())
