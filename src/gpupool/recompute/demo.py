"""One real proof of Chia's mainnet, as a question with a known answer.

`gpupool up` sends it to show that recompute works, and a server asks itself before it reports ready. The answer
never travels: a request holds only truncated line points. Nothing here needs numba.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from gpupool.contracts.recompute import ProofRequest, QualityRequest, hexadecimal
from gpupool.pos.parameters import PROOF_LENGTH, dropped_bits
from gpupool.pos.proofs import unpack_proof
from gpupool.pos.quality import proof_pair
from gpupool.pos.truncation import truncate, truncate_twice

DEMO_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class KnownProof:
    """A proof with what it proves."""

    plot_id: bytes
    k: int
    challenge: bytes
    xs: tuple[int, ...]
    """64 values in proof order."""
    quality: bytes


def known_proof() -> KnownProof:
    """Return the k=32 mainnet proof that ships with this package."""
    text = files("gpupool.recompute").joinpath("data/demo_proof.json").read_text("utf-8")
    fields = json.loads(text)
    return KnownProof(
        plot_id=bytes.fromhex(fields["plot_id"]),
        k=fields["k"],
        challenge=bytes.fromhex(fields["challenge"]),
        xs=unpack_proof(bytes.fromhex(fields["proof"]), fields["k"]),
        quality=bytes.fromhex(fields["quality"]),
    )


def demo_request(level: int = DEMO_LEVEL) -> ProofRequest:
    """Return the question that the shipped proof answers, as a plot of ``level`` (1..7) asks it."""
    return proof_request(known_proof(), level)


def proof_request(proof: KnownProof, level: int = DEMO_LEVEL) -> ProofRequest:
    """Return the question that ``proof`` answers: truncated line points only."""
    return ProofRequest(
        plot_id=proof.plot_id.hex(),
        k=proof.k,
        level=level,
        line_points=hexadecimal(truncate(proof.xs, dropped_bits(level))),
        challenge=proof.challenge.hex(),
    )


def quality_request(proof: KnownProof, level: int = DEMO_LEVEL) -> QualityRequest:
    """Return the look-up that comes before ``proof``: the line point the challenge leads to, of sixteen in table 3."""
    chosen = set(proof_pair(proof.xs, proof.challenge))
    first = next(i for i in range(0, PROOF_LENGTH, 4) if chosen <= set(proof.xs[i : i + 4]))
    return QualityRequest(
        plot_id=proof.plot_id.hex(),
        k=proof.k,
        level=level,
        line_points=hexadecimal(truncate_twice(proof.xs[first : first + 4], dropped_bits(level))),
        challenge=proof.challenge.hex(),
    )
