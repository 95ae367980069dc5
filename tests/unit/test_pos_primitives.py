"""ChaCha8, BLAKE3 and the matching rule, each against what defines it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.pos.blake3 import hash_bytes
from gpupool.pos.chacha import fill_keystream, plot_key
from gpupool.pos.dealing import group_of
from gpupool.pos.lanes import keystream_blocks
from gpupool.pos.matching import mismatch
from gpupool.pos.parameters import COLUMNS, GROUP_SIZE, ROWS, TARGETS

U32 = np.uint32
U64 = np.uint64


def keystream(key: bytes, blocks: int) -> bytes:
    """The bytes of the first blocks of ChaCha8."""
    words = np.empty((16, blocks), np.uint32)
    fill_keystream(np.frombuffer(key, "<u4").astype(np.uint32), U64(0), words)
    return words.T.astype(">u4").tobytes()


def test_chacha8_gives_the_published_stream_of_the_zero_key() -> None:
    """Test vector 1 for 8 rounds and a 256-bit key of draft-strombergson-chacha-test-vectors."""
    expected = (
        "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
        "984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42"
    )
    assert keystream(bytes(32), 1).hex() == expected


def test_blocks_are_independent_of_how_many_are_made_at_once() -> None:
    key = bytes(range(32))
    assert keystream(key, 40)[:64] == keystream(key, 1)
    words = np.empty((16, 1), np.uint32)
    fill_keystream(np.frombuffer(key, "<u4").astype(np.uint32), U64(39), words)
    assert words.T.astype(">u4").tobytes() == keystream(key, 40)[39 * 64 :]


def test_blocks_are_counted_with_64_bits() -> None:
    """Plots of k >= 36 have more than 2^32 blocks. Plain Python, which has no width, is the judge."""
    key, first = bytes(range(32)), 2**32 - 2
    words = np.empty((16, 4), np.uint32)
    fill_keystream(plot_key(key), U64(first), words)
    expected = keystream_blocks(b"\x01" + key[:31], range(first, first + 4))
    assert [row.astype("<u4").tobytes() for row in words.T.byteswap()] == expected


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        (1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"),
        (63, "e9bc37a594daad83be9470df7f7b3798297c3d834ce80ba85d6e207627b7db7b"),
        (64, "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98"),
    ],
)
def test_blake3_gives_the_published_hashes(length: int, expected: str) -> None:
    """Inputs of the official test vectors are 0, 1, 2, .. 250 repeated."""
    assert hash_bytes(bytes(i % 251 for i in range(length))).hex() == expected


def test_blake3_refuses_more_than_a_block() -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        hash_bytes(bytes(65))


@given(st.integers(0, 2**32 - 1), st.integers(0, 63))
def test_groups_and_remainders_need_no_division(word: int, top: int) -> None:
    group, remainder = group_of(U32(word), U32(top))
    assert (int(group), int(remainder)) == divmod(word * 64 + top, GROUP_SIZE)


@pytest.mark.parametrize(
    "word", [0, 2**32 - 1, *(GROUP_SIZE * n // 64 + d for n in (1, 64, 10**6) for d in (-1, 0, 1))]
)
def test_groups_are_right_at_their_borders(word: int) -> None:
    for top in range(64):
        assert group_of(U32(word), U32(top))[0] == (word * 64 + top) // GROUP_SIZE


def targets(parity: int, left: int) -> set[int]:
    """The textbook's list: the remainders in the next group that match one remainder."""
    row, column = divmod(left, COLUMNS)
    return {(row + m) % ROWS * COLUMNS + ((2 * m + parity) ** 2 + column) % COLUMNS for m in range(TARGETS)}


@given(st.integers(0, 1), st.integers(0, GROUP_SIZE - 1))
def test_the_matching_rule_is_the_textbooks(parity: int, left: int) -> None:
    expected = targets(parity, left)
    near = {(target + d) % GROUP_SIZE for target in expected for d in (-COLUMNS, -1, 0, 1, COLUMNS)}
    found = {right for right in near if mismatch(U32(parity), U32(left), U32(right)) == 0}
    assert found == expected


def test_the_matching_rule_holds_for_every_remainder_on_the_right() -> None:
    for parity, left in ((0, 0), (1, 0), (0, GROUP_SIZE - 1), (1, 7000)):
        found = {right for right in range(GROUP_SIZE) if mismatch(U32(parity), U32(left), U32(right)) == 0}
        assert found == targets(parity, left)
