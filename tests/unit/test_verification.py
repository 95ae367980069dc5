"""Our verifier and the reference implementation give the same verdict on real, changed and foreign proofs."""

from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mainnet
from gpupool.pos.errors import InvalidProofError
from gpupool.pos.proofs import pack_proof
from gpupool.pos.verification import verify_proof, verify_tables
from gpupool.recompute.demo import KnownProof

PROOF = mainnet.K32[0]
chiapos = import_module("chiapos")  # it has no types


def reference(proof: KnownProof, xs: tuple[int, ...], challenge: bytes) -> bytes | None:
    """The quality that chiapos gives, or None where it refuses."""
    quality = chiapos.Verifier().validate_proof(proof.plot_id, proof.k, challenge, pack_proof(xs, proof.k))
    return bytes(quality) if quality else None


def ours(proof: KnownProof, xs: tuple[int, ...], challenge: bytes) -> bytes | None:
    try:
        return verify_proof(proof.plot_id, proof.k, xs, challenge)
    except InvalidProofError:
        return None


@pytest.mark.parametrize("proof", mainnet.ALL, ids=lambda proof: proof.plot_id.hex()[:8])
def test_every_real_proof_is_valid_and_has_its_quality(proof: KnownProof) -> None:
    assert verify_proof(proof.plot_id, proof.k, proof.xs, proof.challenge) == proof.quality
    assert reference(proof, proof.xs, proof.challenge) == proof.quality


@given(st.integers(0, 63), st.integers(0, 31), st.sampled_from(mainnet.K32))
def test_one_flipped_bit_makes_it_invalid(index: int, bit: int, proof: KnownProof) -> None:
    changed = list(proof.xs)
    changed[index] ^= 1 << bit
    assert ours(proof, tuple(changed), proof.challenge) is None
    assert reference(proof, tuple(changed), proof.challenge) is None


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_two_swapped_halves_make_it_invalid(width: int) -> None:
    xs = PROOF.xs[width : 2 * width] + PROOF.xs[:width] + PROOF.xs[2 * width :]
    assert ours(PROOF, xs, PROOF.challenge) is None
    assert reference(PROOF, xs, PROOF.challenge) is None


def test_another_challenge_is_not_answered() -> None:
    with pytest.raises(InvalidProofError, match="challenge"):
        verify_proof(PROOF.plot_id, 32, PROOF.xs, bytes(32))


@given(st.binary(min_size=28, max_size=28))
def test_only_the_first_k_bits_of_a_challenge_are_answered(rest: bytes) -> None:
    """The quality depends on all of it, as in the reference."""
    challenge = PROOF.challenge[:4] + rest
    assert ours(PROOF, PROOF.xs, challenge) == reference(PROOF, PROOF.xs, challenge) is not None


def test_another_plot_is_not_answered() -> None:
    with pytest.raises(InvalidProofError, match="table 2"):
        verify_proof(bytes(32), 32, PROOF.xs, PROOF.challenge)


def test_a_proof_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidProofError, match="64 values"):
        verify_proof(PROOF.plot_id, 32, PROOF.xs[:32], PROOF.challenge)


def test_a_value_with_too_many_bits_is_refused() -> None:
    with pytest.raises(InvalidProofError, match="more than 32 bits"):
        verify_tables(PROOF.plot_id, 32, [*PROOF.xs[:3], 2**32])


@pytest.mark.parametrize("width", [2, 4, 8, 16, 32])
def test_a_part_of_a_proof_can_be_verified_alone(width: int) -> None:
    for start in range(0, 64, width):
        verify_tables(PROOF.plot_id, 32, PROOF.xs[start : start + width])
    with pytest.raises(InvalidProofError, match="do not match"):
        verify_tables(PROOF.plot_id, 32, PROOF.xs[1 : 1 + width])
