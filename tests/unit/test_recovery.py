"""Real proofs come back bit for bit from what a compressed plot keeps of them."""

import itertools
import threading
from collections.abc import Sequence

import pytest

import mainnet
from gpupool.core.errors import DeadlineError, InvalidInputError, UnsupportedError
from gpupool.pos.chacha import plot_key
from gpupool.pos.decompressor import Decompressor
from gpupool.pos.errors import AmbiguousProofError, NoProofError
from gpupool.pos.line_points import encode
from gpupool.pos.pairs import Checkpoint, new_workspace
from gpupool.pos.parameters import LEVELS, dropped_bits
from gpupool.pos.quality import choose_pair, proof_pair, quality_string
from gpupool.pos.tables import Entries, concatenate
from gpupool.pos.truncation import truncate, truncate_twice
from gpupool.pos.verification import verify_tables
from gpupool.recompute.demo import KnownProof

PROOF = mainnet.K32[0]


@pytest.fixture(scope="module")
def decompressor() -> Decompressor:
    return Decompressor()


def recovered(decompressor: Decompressor, proof: KnownProof, level: int) -> tuple[int, ...]:
    bits = dropped_bits(level)
    return decompressor.recover_proof(proof.plot_id, bits, truncate(proof.xs, bits), proof.challenge)


def chosen_four(proof: KnownProof) -> tuple[int, ...]:
    """The entry of table 3 that the challenge leads to."""
    chosen = set(proof_pair(proof.xs, proof.challenge))
    return next(four for i in range(0, 64, 4) if chosen <= set(four := proof.xs[i : i + 4]))


@pytest.mark.parametrize("proof", mainnet.K32, ids=lambda proof: proof.plot_id.hex()[:8])
def test_every_proof_comes_back_from_level_1(decompressor: Decompressor, proof: KnownProof) -> None:
    assert recovered(decompressor, proof, 1) == proof.xs


@pytest.mark.parametrize("proof", mainnet.K32, ids=lambda proof: proof.plot_id.hex()[:8])
def test_every_proof_comes_back_from_level_3(decompressor: Decompressor, proof: KnownProof) -> None:
    assert recovered(decompressor, proof, 3) == proof.xs


@pytest.mark.parametrize("level", [2, 4, 5, 6, 7])
def test_a_proof_comes_back_from_the_other_levels(decompressor: Decompressor, level: int) -> None:
    assert recovered(decompressor, mainnet.K32[9], level) == mainnet.K32[9].xs


@pytest.mark.slow
@pytest.mark.parametrize("level", [5, 7])
@pytest.mark.parametrize("proof", mainnet.K32[10:18], ids=lambda proof: proof.plot_id.hex()[:8])
def test_more_proofs_come_back_from_high_levels(
    decompressor: Decompressor, proof: KnownProof, level: int
) -> None:
    """Each takes up to two seconds of a core."""
    assert recovered(decompressor, proof, level) == proof.xs


def test_levels_may_change_from_one_request_to_the_next(decompressor: Decompressor) -> None:
    for level in (1, 2, 1):
        assert recovered(decompressor, PROOF, level) == PROOF.xs


def test_without_a_challenge_the_tables_single_it_out(decompressor: Decompressor) -> None:
    assert decompressor.recover_proof(PROOF.plot_id, 16, truncate(PROOF.xs, 16)) == PROOF.xs


@pytest.mark.parametrize("proof", mainnet.K32, ids=lambda proof: proof.plot_id.hex()[:8])
def test_the_pair_of_a_quality_comes_back_from_level_1(decompressor: Decompressor, proof: KnownProof) -> None:
    four = chosen_four(proof)
    found = decompressor.recover_quality(proof.plot_id, 16, truncate_twice(four, 16), proof.challenge)
    assert found.chain == four
    assert quality_string(proof.challenge, found.pair, 32) == proof.quality


@pytest.mark.parametrize("level", LEVELS)
def test_the_pair_of_a_quality_comes_back_from_every_level(decompressor: Decompressor, level: int) -> None:
    for proof in mainnet.K32[:3]:
        bits, four = dropped_bits(level), chosen_four(proof)
        found = decompressor.recover_quality(proof.plot_id, bits, truncate_twice(four, bits), proof.challenge)
        assert quality_string(proof.challenge, found.pair, 32) == proof.quality


def test_a_quality_comes_back_from_more_bits_than_any_level_drops(decompressor: Decompressor) -> None:
    """Work in two passes, and several entries fit the first line point, so that its sibling has to tell."""
    found = decompressor.recover_quality(PROOF.plot_id, 23, truncate_twice(PROOF.xs[:8], 23), PROOF.challenge)
    assert found.chain == PROOF.xs[:4]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bits", [23, 24])
def test_a_proof_comes_back_from_more_bits_than_any_level_drops(bits: int) -> None:
    together = Decompressor(threads=2)
    line_points = truncate(PROOF.xs, bits)
    assert together.recover_proof(PROOF.plot_id, bits, line_points, PROOF.challenge) == PROOF.xs
    together.close()


def test_the_last_bit_of_the_challenge_picks_the_smaller_or_larger_line_point() -> None:
    xs = (5, 9, 7, 8)
    assert encode(7, 8) < encode(5, 9)
    assert choose_pair(xs, bytes(32)) == (7, 8)
    assert choose_pair(xs, bytes([*[0] * 31, 1])) == (5, 9)
    assert choose_pair((8, 7, 9, 5), bytes([*[255] * 31, 254])) == (7, 8)


class Doubtful(Decompressor):
    """One whose first line point leaves two entries: the right one and one from elsewhere in the proof."""

    def __init__(self) -> None:
        super().__init__()
        self.climbs = 0

    def _climb(
        self, plot_id: bytes, bits: int, line_points: Sequence[int], checkpoint: Checkpoint, k: int
    ) -> Entries:
        found = super()._climb(plot_id, bits, line_points, checkpoint, k)
        self.climbs += 1
        if self.climbs > 1:
            return found
        return concatenate(
            [found, super()._climb(plot_id, bits, truncate(PROOF.xs[8:12], bits), checkpoint, k)]
        )


def test_a_doubt_is_settled_by_the_sibling() -> None:
    found = Doubtful().recover_quality(PROOF.plot_id, 16, truncate_twice(PROOF.xs[:8], 16), PROOF.challenge)
    assert found.chain == PROOF.xs[:4]


def test_the_answer_lies_below_the_first_line_point_even_if_it_is_right_of_its_sibling() -> None:
    first, second = truncate_twice(PROOF.xs[:8], 16)
    found = Doubtful().recover_quality(PROOF.plot_id, 16, (second, first), PROOF.challenge)
    assert found.chain == PROOF.xs[4:8]


def test_a_doubt_without_a_sibling_is_an_error() -> None:
    with pytest.raises(AmbiguousProofError, match="2 proofs"):
        Doubtful().recover_quality(PROOF.plot_id, 16, truncate_twice(PROOF.xs[:4], 16), PROOF.challenge)


def test_a_pair_within_one_bucket_is_found() -> None:
    """Made for this test: the first two x share their upper 12 bits, so their line point reads as (117, 0)."""
    plot_id, xs = bytes(32), (122238166, 121917546, 1091067724, 1092194832)
    assert xs[0] >> 20 == xs[1] >> 20 == 116
    verify_tables(plot_id, 32, xs)
    assert truncate(xs, 20)[0] == encode(117, 0)
    assert Decompressor().recover_quality(plot_id, 20, truncate_twice(xs, 20), bytes(32)).chain == xs


def test_a_real_proof_has_a_pair_within_one_bucket_once_22_bits_are_dropped() -> None:
    pairs = [(proof, pair) for proof in mainnet.K32 for pair in _shared_buckets(proof, 22)]
    assert pairs
    for proof, (left, right) in pairs:
        found = new_workspace(22).table_two(plot_key(proof.plot_id), left >> 22, left >> 22).xs.tolist()
        assert found.count([left, right]) == 1
        assert len({tuple(row) for row in found}) == len(found)


@pytest.mark.slow
def test_a_real_proof_with_a_pair_within_one_bucket_comes_back() -> None:
    """The official decompressor loses it."""
    proof = next(proof for proof in mainnet.K32 if _shared_buckets(proof, 22))
    assert (
        Decompressor().recover_proof(proof.plot_id, 22, truncate(proof.xs, 22), proof.challenge) == proof.xs
    )


def test_there_is_no_proof_of_another_plot(decompressor: Decompressor) -> None:
    with pytest.raises(NoProofError) as fault:
        decompressor.recover_proof(bytes(32), 16, truncate(PROOF.xs, 16), PROOF.challenge)
    assert (fault.value.code, fault.value.status, fault.value.exit_code) == ("no_proof", 404, 4)


def test_there_is_no_proof_for_another_challenge(decompressor: Decompressor) -> None:
    with pytest.raises(NoProofError):
        decompressor.recover_proof(PROOF.plot_id, 16, truncate(PROOF.xs, 16), bytes(32))


def test_there_is_no_proof_when_one_line_point_is_wrong(decompressor: Decompressor) -> None:
    line_points = list(truncate(PROOF.xs, 16))
    line_points[17] += 1
    with pytest.raises(NoProofError):
        decompressor.recover_proof(PROOF.plot_id, 16, line_points, PROOF.challenge)


def test_there_is_no_quality_of_another_plot(decompressor: Decompressor) -> None:
    with pytest.raises(NoProofError):
        decompressor.recover_quality(bytes(32), 16, truncate_twice(PROOF.xs[:8], 16), PROOF.challenge)


@pytest.mark.parametrize("count", [0, 1, 31, 33])
def test_a_proof_needs_32_line_points(decompressor: Decompressor, count: int) -> None:
    with pytest.raises(InvalidInputError, match="32 line points"):
        decompressor.recover_proof(PROOF.plot_id, 16, [1] * count)


@pytest.mark.parametrize("count", [0, 3])
def test_a_quality_needs_one_or_two_line_points(decompressor: Decompressor, count: int) -> None:
    with pytest.raises(InvalidInputError, match="1 or 2"):
        decompressor.recover_quality(PROOF.plot_id, 16, [1] * count, bytes(32))


def test_a_line_point_of_a_lower_level_is_refused_before_any_work(decompressor: Decompressor) -> None:
    with pytest.raises(InvalidInputError, match="too large"):
        decompressor.recover_proof(PROOF.plot_id, 17, truncate(PROOF.xs, 16), checkpoint=_never)


@pytest.mark.parametrize("bits", [-1, 0, 25, 32])
def test_other_bits_are_refused(decompressor: Decompressor, bits: int) -> None:
    with pytest.raises(UnsupportedError):
        decompressor.recover_proof(PROOF.plot_id, bits, [1] * 32)


@pytest.mark.parametrize("bits", [16, 20, 22])
def test_work_stops_at_a_checkpoint(decompressor: Decompressor, bits: int) -> None:
    calls = itertools.count(1)

    def checkpoint() -> None:
        if next(calls) == 3:
            raise DeadlineError

    with pytest.raises(DeadlineError):
        decompressor.recover_proof(PROOF.plot_id, bits, truncate(PROOF.xs, bits), None, checkpoint)
    assert next(calls) == 4
    assert recovered(decompressor, PROOF, 1) == PROOF.xs


@pytest.mark.parametrize("bits", [16, 20, 22, 24])
def test_checkpoints_are_near_each_other_at_every_level(bits: int) -> None:
    """At most 2^20 values are computed or joined from one to the next."""
    calls = itertools.count()

    def checkpoint() -> None:
        next(calls)

    new_workspace(bits).table_two(plot_key(PROOF.plot_id), 1, 2, checkpoint)
    assert next(calls) >= (3 << bits >> 20 if bits > 20 else 1)


def test_threads_share_a_proof_and_their_checkpoints() -> None:
    together = Decompressor(threads=3)
    for proof in mainnet.K32[:3]:
        assert recovered(together, proof, 2) == proof.xs
    seen: set[int] = set()
    barrier = threading.Barrier(2, timeout=60)

    def checkpoint() -> None:
        if threading.get_ident() not in seen and len(seen) < 2:
            seen.add(threading.get_ident())
            barrier.wait()

    xs = Decompressor(threads=2).recover_proof(
        PROOF.plot_id, 17, truncate(PROOF.xs, 17), PROOF.challenge, checkpoint
    )
    assert xs == PROOF.xs
    assert len(seen) == 2
    together.close()


def test_a_fault_in_a_helping_thread_ends_the_request() -> None:
    here = threading.get_ident()
    helped = threading.Event()

    def checkpoint() -> None:
        if threading.get_ident() != here:
            helped.set()
            raise DeadlineError
        assert helped.wait(60)

    with pytest.raises(DeadlineError):
        Decompressor(threads=2).recover_proof(PROOF.plot_id, 17, truncate(PROOF.xs, 17), None, checkpoint)


def _shared_buckets(proof: KnownProof, bits: int) -> list[tuple[int, ...]]:
    pairs = [proof.xs[i : i + 2] for i in range(0, 64, 2)]
    return [pair for pair in pairs if pair[0] >> bits == pair[1] >> bits]


def _never() -> None:
    raise AssertionError("no work was expected")
