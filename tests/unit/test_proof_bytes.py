"""Proofs as numbers and bytes, and the tables of levels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mainnet
from gpupool.core.errors import InvalidInputError, UnsupportedError
from gpupool.pos.parameters import (
    LEVELS,
    check_dropped_bits,
    check_plot_size,
    dropped_bits,
    level_of,
    most_dropped_bits,
)
from gpupool.pos.proofs import pack_proof, unpack_proof
from gpupool.recompute.demo import demo_request, known_proof


@given(st.integers(18, 50), st.data())
def test_a_proof_survives_the_way_to_bytes_and_back(k: int, data: st.DataObject) -> None:
    xs = tuple(data.draw(st.lists(st.integers(0, 2**k - 1), min_size=64, max_size=64)))
    packed = pack_proof(xs, k)
    assert len(packed) == 8 * k
    assert unpack_proof(packed, k) == xs


@pytest.mark.parametrize("xs", [(0,) * 63, (0,) * 65, (*(0,) * 63, 2**32), (*(0,) * 63, -1)])
def test_what_is_no_proof_is_not_packed(xs: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError):
        pack_proof(xs, 32)


def test_bytes_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="256 bytes"):
        unpack_proof(bytes(255), 32)


def test_levels_and_bits_are_one_scale() -> None:
    assert [dropped_bits(level) for level in LEVELS] == [16, 17, 18, 19, 20, 21, 22]
    assert [level_of(dropped_bits(level)) for level in LEVELS] == list(LEVELS)


@pytest.mark.parametrize("level", [-1, 0, 8, 9])
def test_other_levels_are_refused(level: int) -> None:
    with pytest.raises(UnsupportedError):
        dropped_bits(level)
    with pytest.raises(UnsupportedError):
        level_of(15 + level)


def test_other_plot_sizes_are_refused() -> None:
    for k in (18, 32, 40):
        check_plot_size(k)
    for k in (0, 17, 41):
        with pytest.raises(UnsupportedError, match=f"k={k}"):
            check_plot_size(k)


@pytest.mark.parametrize(
    ("k", "most"), [(18, 16), (20, 18), (22, 20), (24, 21), (29, 24), (32, 24), (40, 24)]
)
def test_small_plots_may_drop_fewer_bits(k: int, most: int) -> None:
    assert most_dropped_bits(k) == most
    check_dropped_bits(k, 1)
    check_dropped_bits(k, most)
    for bits in (-1, 0, most + 1):
        with pytest.raises(UnsupportedError, match=f"drop {bits} bits"):
            check_dropped_bits(k, bits)


def test_the_shipped_proof_is_one_of_the_mainnet_proofs() -> None:
    assert known_proof() in mainnet.K32


def test_the_demo_question_does_not_hold_its_answer() -> None:
    text = demo_request(3).model_dump_json()
    assert not any(f"{x:x}" in text for x in known_proof().xs if x >= 1 << 28)
