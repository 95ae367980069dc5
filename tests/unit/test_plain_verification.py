"""The judge without numba: agrees with the other one, and says no to everything that is not the answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mainnet
from gpupool.pos.blake3 import hash_bytes
from gpupool.pos.errors import InvalidProofError
from gpupool.pos.lanes import hash_all, pack, unpack
from gpupool.pos.line_points import encode
from gpupool.pos.plain_verification import check_proof, check_quality
from gpupool.pos.quality import plot_order, proof_pair
from gpupool.pos.truncation import truncate
from gpupool.recompute.demo import KnownProof
from gpupool.recompute.proxy.judging import PROOF, QUALITY, RIGHT, UNKNOWN, WRONG, verdict

BITS = 18
KNOWN = mainnet.K32[0]
POINTS = truncate(KNOWN.xs, BITS)


def quality_of(known: KnownProof) -> tuple[int, tuple[int, int]]:
    """Return the line point of line points that the challenge leads to, and the pair."""
    pair = proof_pair(known.xs, known.challenge)
    points = truncate(known.xs, BITS)
    place = next(i for i in range(32) if tuple(sorted(known.xs[2 * i : 2 * i + 2])) == pair)
    return encode(points[place], points[place ^ 1]), pair


@pytest.mark.parametrize("known", mainnet.K32, ids=lambda known: known.challenge.hex()[:8])
def test_real_proofs_and_qualities_pass(known: KnownProof) -> None:
    check_proof(known.plot_id, 32, BITS, truncate(known.xs, BITS), known.xs, known.challenge)
    check_proof(known.plot_id, 32, BITS, truncate(known.xs, BITS), known.xs, None)
    stored = truncate(plot_order(known.xs), BITS)
    check_proof(known.plot_id, 32, BITS, stored, known.xs, known.challenge)
    line_point, pair = quality_of(known)
    check_quality(known.plot_id, 32, BITS, line_point, pair, known.challenge)


@given(place=st.integers(0, 63), change=st.integers(1, (1 << 32) - 1))
def test_a_proof_with_one_other_value_fails(place: int, change: int) -> None:
    xs = list(KNOWN.xs)
    xs[place] ^= change
    with pytest.raises(InvalidProofError):
        check_proof(KNOWN.plot_id, 32, BITS, POINTS, xs, KNOWN.challenge)


def test_other_order_challenge_plot_or_question_fails() -> None:
    swapped = (KNOWN.xs[1], KNOWN.xs[0], *KNOWN.xs[2:])
    other = bytes(32)
    for plot_id, points, xs, challenge in (
        (KNOWN.plot_id, POINTS, swapped, KNOWN.challenge),
        (KNOWN.plot_id, POINTS, KNOWN.xs, other),
        (other, POINTS, KNOWN.xs, KNOWN.challenge),
        (KNOWN.plot_id, (1, *POINTS[1:]), KNOWN.xs, KNOWN.challenge),
        (KNOWN.plot_id, POINTS, KNOWN.xs[:63], KNOWN.challenge),
    ):
        with pytest.raises(InvalidProofError):
            check_proof(plot_id, 32, BITS, points, xs, challenge)


@given(place=st.integers(0, 1), change=st.integers(1, (1 << 32) - 1))
def test_a_quality_with_one_other_value_fails(place: int, change: int) -> None:
    line_point, pair = quality_of(KNOWN)
    numbers = list(pair)
    numbers[place] ^= change
    with pytest.raises(InvalidProofError):
        check_quality(KNOWN.plot_id, 32, BITS, line_point, numbers, KNOWN.challenge)


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=70))
def test_words_come_back_out_of_their_lanes(words: list[int]) -> None:
    assert unpack(pack(words), len(words)) == tuple(words)


@given(st.integers(0, 64), st.integers(1, 5), st.randoms(use_true_random=False))
def test_hashes_are_those_of_the_kernel(length: int, count: int, random: object) -> None:
    messages = [random.randbytes(length) for _ in range(count)]  # type: ignore[attr-defined]
    assert hash_all(messages, length) == [hash_bytes(message) for message in messages]


# -- as the proxy asks for it --------------------------------------------------------------------------------


def question(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "plot_id": KNOWN.plot_id.hex(),
        "k": 32,
        "level": 3,
        "line_points": [f"{point:x}" for point in POINTS],
        "challenge": KNOWN.challenge.hex(),
    }
    return json.dumps({**fields, **changes}).encode()


def answer(xs: tuple[int, ...], field: str = "proof") -> bytes:
    return json.dumps({field: [f"{x:x}" for x in xs]}).encode()


def test_verdicts() -> None:
    line_point, pair = quality_of(KNOWN)
    about_quality = question(line_points=[f"{line_point:x}"])
    binary = b"".join(x.to_bytes(4, "big") for x in KNOWN.xs)
    for kind, asked, answered, expected in (
        (PROOF, question(), answer(KNOWN.xs), RIGHT),
        (PROOF, question(level=None, bits=18), answer(KNOWN.xs), RIGHT),
        (PROOF, question(challenge=None), answer(KNOWN.xs), RIGHT),
        (PROOF, question(), binary, RIGHT),
        (PROOF, question(), answer(KNOWN.xs[::-1]), WRONG),
        (PROOF, question(), binary[:-4], WRONG),
        (PROOF, question(), b'{"proof": 7}', WRONG),
        (PROOF, question(), b"{", WRONG),
        (QUALITY, about_quality, answer(pair, "x"), RIGHT),
        (QUALITY, about_quality, answer(pair[::-1], "x"), WRONG),
        (QUALITY, question(line_points=["1"]), answer(pair, "x"), WRONG),
    ):
        assert verdict(kind, asked, answered)[0] == expected, (asked, answered)


def test_numbers_that_begin_like_json_are_numbers() -> None:
    known = next(known for known in mainnet.K32 if known.xs[0] >> 24 == ord("{"))
    points = [f"{point:x}" for point in truncate(known.xs, BITS)]
    asked = question(plot_id=known.plot_id.hex(), line_points=points, challenge=None)
    assert verdict(PROOF, asked, b"".join(x.to_bytes(4, "big") for x in known.xs)) == (RIGHT, "")


CHANGES: list[dict[str, object]] = [
    {"k": 40}, {"level": 200}, {"level": None}, {"plot_id": "ab"}, {"line_points": []}, {"line_points": [1]},
    {"challenge": "ab"}, {"line_points": ["f" * 34] * 32}, {"plot_id": None},
]  # fmt: skip


@pytest.mark.parametrize(
    "asked", [b"", b"[]", b"{}", b"[" * 9000, *(question(**change) for change in CHANGES)]
)
def test_questions_that_cannot_be_judged_make_no_node_wrong(asked: bytes) -> None:
    assert verdict(PROOF, asked, answer(KNOWN.xs))[0] == UNKNOWN
