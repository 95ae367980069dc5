"""How large a farm is, by the public formula."""

import pytest

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.bench.farm_size import (
    FILTERS,
    PLOT_GIB,
    Rate,
    farms,
    largest_farm_tib,
    lookups_a_second,
)
from gpupool.recompute.bench.levels import parse_levels


def test_the_formula_gives_what_was_worked_out_by_hand() -> None:
    """1,000 look-ups in 100 s at C7 and filter 256: 78 GiB / 1024 x 256 x 8 x 1000 / 100."""
    assert largest_farm_tib(7, 256, 1000 / 100) == pytest.approx(1560.0)


def test_a_proof_in_25_look_ups_counts() -> None:
    assert lookups_a_second([Rate(qualities=10.0, proofs=0.4)]) == pytest.approx(5.0)


def test_devices_add_up() -> None:
    one = Rate(10.0, 1.0)
    assert lookups_a_second([one, one]) == pytest.approx(2 * lookups_a_second([one]))
    assert lookups_a_second([]) == 0


def test_a_level_counts_the_devices_that_were_measured_at_it() -> None:
    one = Rate(10.0, 1.0)
    found = farms([(5, one), (3, one), (3, one)])
    assert [(farm.level, farm.devices) for farm in found] == [(3, 2), (5, 1)]
    assert found[0].lookups_per_second == pytest.approx(2 * found[1].lookups_per_second)
    assert found[1].largest_tib[256] == largest_farm_tib(5, 256, lookups_a_second([one]))


def test_half_the_filter_is_half_the_farm() -> None:
    sizes = [largest_farm_tib(5, each, 20.0) for each in FILTERS]
    assert sizes[0] == 2 * sizes[1] == 4 * sizes[2]


def test_every_level_has_a_size() -> None:
    assert list(PLOT_GIB) == list(range(1, 8))
    assert list(PLOT_GIB.values()) == sorted(PLOT_GIB.values(), reverse=True)


@pytest.mark.parametrize(
    ("text", "levels"),
    [("1", [1]), ("1-3", [1, 2, 3]), ("7,1-2", [1, 2, 7]), ("3, 3", [3]), ("1-7", [*range(1, 8)])],
)
def test_levels_are_read(text: str, levels: list[int]) -> None:
    assert parse_levels(text) == levels


@pytest.mark.parametrize("text", ["", "0", "8", "3-1", "1-", "a", "1;2", "1-9", "١"])
def test_other_levels_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--levels"):
        parse_levels(text)
