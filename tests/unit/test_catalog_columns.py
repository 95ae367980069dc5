"""The catalog as a table: unknown is a dash, and filters and sorting keep to what is known."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.catalog import Catalog
from gpupool.catalog.columns import COLUMNS, Column, Filter, show, sort_models

CATALOG = Catalog.load()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (0.2, "0.20"),
        (4.5, "4.50"),
        (82, "82"),
        ("Ampere", "Ampere"),
    ],
)
def test_values_as_people_read_them(value: str | float | bool | None, text: str) -> None:
    assert show(value) == text


def test_unknown_facts_show_as_a_dash_and_nothing_else_does() -> None:
    dashes = {
        (model.short_ref, column.key)
        for model in CATALOG
        for column in COLUMNS
        if show(column.value(model)) == "-"
    }
    assert dashes == {
        (ref, key)
        for ref in ("pro_6000", "h20", "mi300x", "b200")
        for key in ("architecture", "tensor_cores", "ecc", "sxm")
    }


@pytest.mark.parametrize(
    ("wanted", "refs"),
    [
        (Filter(group="rtx"), ["3090", "4090", "5090"]),
        (Filter(vendor="AMD"), ["mi300x"]),
        (Filter(architecture="hopper", max_hourly_usd=1.79), ["h100", "h800"]),
        (Filter(min_memory_gb=140), ["h200", "mi300x", "b200"]),
        (Filter(min_memory_gb=48, max_hourly_usd=0.5), ["a6000", "a40"]),
        (Filter(architecture="-"), []),
    ],
)
def test_filters(wanted: Filter, refs: list[str]) -> None:
    assert [model.short_ref for model in CATALOG if wanted.accepts(model)] == refs


@given(st.sampled_from(COLUMNS), st.booleans())
def test_sorting_orders_the_known_and_puts_the_unknown_last(column: Column, descending: bool) -> None:
    ordered = sort_models(CATALOG, column, descending=descending)
    assert sorted(model.short_ref for model in ordered) == sorted(model.short_ref for model in CATALOG)
    values = [column.value(model) for model in ordered]
    known = [value for value in values if value is not None]
    assert values[len(known) :] == [None] * (len(values) - len(known))
    keys: list[Any] = [value.lower() if isinstance(value, str) else value for value in known]
    assert keys == sorted(keys, reverse=descending)
