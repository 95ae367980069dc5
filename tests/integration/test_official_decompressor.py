"""Our engine and the decompressor of Chia's own software agree, except where that one is known to lose a proof."""

import pytest

import mainnet
from gpupool.pos.decompressor import Decompressor
from gpupool.pos.line_points import encode
from gpupool.pos.parameters import dropped_bits
from gpupool.pos.truncation import truncate, truncate_twice
from official_decompressor import official_decompressor

PROOFS = mainnet.K32[20:24]


SLOW = [
    pytest.param(level, marks=[pytest.mark.slow, pytest.mark.timeout(600)], id=str(level))
    for level in (5, 6, 7)
]


@pytest.mark.parametrize("level", [1, 2, 3, *SLOW])
def test_proofs_are_the_same(level: int) -> None:
    bits, ours = dropped_bits(level), Decompressor()
    with official_decompressor(level) as official:
        for proof in PROOFS[: 4 if level < 4 else 1]:
            line_points = truncate(proof.xs, bits)
            found = official.proof(proof.plot_id, level, line_points)
            assert found is not None
            assert tuple(found) == ours.recover_proof(proof.plot_id, bits, line_points, proof.challenge)


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_qualities_are_the_same(level: int) -> None:
    bits, ours, proof = dropped_bits(level), Decompressor(), PROOFS[0]
    entries = range(0, 64, 4 if level < 4 else 32)
    with official_decompressor(level) as official:
        for start in entries:
            line_points = truncate_twice(proof.xs[start : start + 4], bits)
            for challenge in (bytes(32), bytes([*[0] * 31, 1])):
                found = official.quality(proof.plot_id, level, line_points, challenge)
                assert found is not None
                assert found == ours.recover_quality(proof.plot_id, bits, line_points, challenge).pair


def test_of_two_line_points_the_first_one_is_answered() -> None:
    """From level 6 on the official one wants both; which one it answers is what our interface keeps to."""
    level, proof = 6, PROOFS[1]
    line_points = truncate_twice(proof.xs[:8], 21)
    ours = Decompressor()
    with official_decompressor(level) as official:
        for given, four in ((line_points, proof.xs[:4]), (line_points[::-1], proof.xs[4:8])):
            found = official.quality(proof.plot_id, level, given, proof.challenge)
            assert found is not None
            assert set(found) <= set(four)
    low = truncate_twice(proof.xs[:8], 16)
    for line_pair, four in ((low, proof.xs[:4]), (low[::-1], proof.xs[4:8])):
        assert ours.recover_quality(proof.plot_id, 16, line_pair, proof.challenge).chain == four


def test_a_pair_within_one_bucket_is_lost_there_and_found_here() -> None:
    plot_id, xs = bytes(32), (122238166, 121917546, 1091067724, 1092194832)
    line_points = truncate_twice(xs, 20)
    assert truncate(xs, 20)[0] == encode(117, 0)
    with official_decompressor(5) as official:
        assert official.quality(plot_id, 5, line_points, bytes(32)) is None
    assert Decompressor().recover_quality(plot_id, 20, line_points, bytes(32)).chain == xs
