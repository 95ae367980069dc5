"""Plots made by Chia's own plotter: whatever is dropped from their proofs comes back."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

import mainnet
from gpupool.pos.decompressor import Decompressor
from gpupool.pos.errors import AmbiguousProofError
from gpupool.pos.parameters import check_dropped_bits, most_dropped_bits
from gpupool.pos.proofs import unpack_proof
from gpupool.pos.quality import proof_pair, quality_string
from gpupool.pos.truncation import truncate, truncate_twice
from gpupool.pos.verification import verify_proof
from gpupool.recompute.demo import KnownProof

chiapos = import_module("chiapos")  # it has no types
CHALLENGES = 50
KEPT = (17, 13, 10, 8)
"""Bits of an x that a plot keeps."""


@dataclass(frozen=True)
class Plot:
    """All proofs of a plot for some challenges."""

    k: int
    proofs: list[KnownProof]


def made(k: int, folder: Path) -> Plot:
    plot_id, where = hashlib.sha256(b"plot %d" % k).digest(), str(folder)
    stripe = 8192 if k >= 20 else 4096
    chiapos.DiskPlotter().create_plot_disk(
        where, where, where, "test.plot", k, b"memo", plot_id, 300, 16, stripe, 2, False
    )
    prover, proofs = chiapos.DiskProver(str(folder / "test.plot")), []
    for number in range(CHALLENGES):
        challenge = hashlib.sha256(b"challenge %d" % number).digest()
        for index, quality in enumerate(prover.get_qualities_for_challenge(challenge)):
            xs = unpack_proof(prover.get_full_proof(challenge, index), k)
            proofs.append(KnownProof(plot_id, k, challenge, xs, bytes(quality)))
    return Plot(k, proofs)


@pytest.fixture(
    scope="module",
    params=[
        18,
        *(pytest.param(k, marks=[pytest.mark.slow, pytest.mark.timeout(600)]) for k in (19, 20, 21, 22)),
    ],
)
def plot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Plot:
    return made(request.param, tmp_path_factory.mktemp("plot"))


@pytest.fixture(scope="module")
def decompressor() -> Iterator[Decompressor]:
    decompressor = Decompressor()
    yield decompressor
    decompressor.close()


@pytest.mark.parametrize("kept", KEPT)
def test_every_proof_of_a_plot_comes_back(decompressor: Decompressor, plot: Plot, kept: int) -> None:
    bits = plot.k - kept
    assert len(plot.proofs) > CHALLENGES // 2
    for proof in plot.proofs:
        line_points = truncate(proof.xs, bits)
        found = decompressor.recover_proof(proof.plot_id, bits, line_points, proof.challenge, k=plot.k)
        assert found == proof.xs
        assert verify_proof(proof.plot_id, plot.k, found, proof.challenge) == proof.quality


def test_proofs_come_back_where_most_bits_are_dropped(decompressor: Decompressor, plot: Plot) -> None:
    bits = most_dropped_bits(plot.k) - 2
    for proof in plot.proofs[:2]:
        line_points = truncate(proof.xs, bits)
        found = decompressor.recover_proof(proof.plot_id, bits, line_points, proof.challenge, k=plot.k)
        assert verify_proof(proof.plot_id, plot.k, found, proof.challenge) == proof.quality
        assert truncate(found, bits) == line_points


@pytest.mark.parametrize("bits", [4, 7, 12])
def test_every_quality_of_a_plot_comes_back(decompressor: Decompressor, plot: Plot, bits: int) -> None:
    """The plot's own quality is the judge; its sibling settles what the first line point leaves open."""
    for proof in plot.proofs:
        chosen = set(proof_pair(proof.xs, proof.challenge))
        first = next(i for i in range(0, 64, 4) if chosen <= set(proof.xs[i : i + 4]))
        sibling = first ^ 4
        both = [truncate_twice(proof.xs[i : i + 4], bits)[0] for i in (first, sibling)]
        found = decompressor.recover_quality(proof.plot_id, bits, both, proof.challenge, k=plot.k)
        assert quality_string(proof.challenge, found.pair, plot.k) == proof.quality


def test_one_line_point_leaves_some_qualities_in_doubt(decompressor: Decompressor, plot: Plot) -> None:
    """So that the test above is about the fall-back to the sibling, too; a doubt is told, never guessed away."""
    # About 2^(4b - 3k + 3) false entries of table 3: an eighth to a half.
    bits, doubts = (3 * plot.k - 4) // 4, 0
    for proof in plot.proofs:
        line_points = truncate_twice(proof.xs[:4], bits)
        try:
            found = decompressor.recover_quality(proof.plot_id, bits, line_points, proof.challenge, k=plot.k)
        except AmbiguousProofError:
            doubts += 1
        else:
            assert found.chain == proof.xs[:4]
    assert 0 < doubts < len(plot.proofs)


def test_plots_have_proofs_with_a_pair_within_one_bucket(plot: Plot) -> None:
    """So that the tests above are about them, too."""
    bits = plot.k - KEPT[-1]
    assert any(p.xs[i] >> bits == p.xs[i + 1] >> bits for p in plot.proofs for i in range(0, 64, 2))


@pytest.mark.parametrize("proof", mainnet.K33, ids=lambda proof: proof.plot_id.hex()[:8])
@pytest.mark.parametrize("bits", [12, 16, 18])
def test_real_proofs_of_33_bits_come_back(decompressor: Decompressor, proof: KnownProof, bits: int) -> None:
    check_dropped_bits(proof.k, bits)
    line_points = truncate(proof.xs, bits)
    found = decompressor.recover_proof(proof.plot_id, bits, line_points, proof.challenge, k=proof.k)
    assert found == proof.xs
    assert verify_proof(proof.plot_id, proof.k, found, proof.challenge) == proof.quality
