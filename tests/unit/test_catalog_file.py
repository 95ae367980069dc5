"""A catalog file that is wrong in one place is refused whole, naming that place."""

import copy
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.catalog import Catalog
from gpupool.core.errors import InvalidInputError

SHIPPED: dict[str, Any] = json.loads(files("gpupool.catalog").joinpath("gpus.json").read_text())


def _model_with(**changes: object) -> dict[str, Any]:
    document = copy.deepcopy(SHIPPED)
    document["models"][3].update(changes)
    return document


def _refusal(document: object) -> str:
    with pytest.raises(InvalidInputError) as caught:
        Catalog.parse(json.dumps(document))
    return caught.value.message


def test_the_shipped_file_names_its_source() -> None:
    assert "chutes-api" in Catalog.load().source


def test_a_catalog_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps(SHIPPED))
    assert Catalog.load(path) == Catalog.load()


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"gone\.json cannot be read"):
        Catalog.load(tmp_path / "gone.json")


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("short_ref", "RTX 4090", "lower-case"),
        ("display_name", "", "a text of 1 to 200"),
        ("vendor", "voodoo", "one of nvidia, amd"),
        ("pattern", "A100(", "a regular expression"),
        ("pattern", None, "a regular expression"),
        ("memory_gb", "16", "a whole number"),
        ("memory_gb", 0, "a whole number"),
        ("memory_gb", True, "a whole number"),
        ("compute_capability", 8.6, "a compute capability"),
        ("tensor_cores", 0, "a whole number"),
        ("processors", None, "a whole number"),
        ("base_mhz", 99_999, "at most boost_mhz"),
        ("ecc", "no", "true, false or null"),
        ("hourly_usd", "0.2", "a number"),
        ("hourly_usd", 0, "a number"),
        ("proof_estimate_seconds", 0, "a whole number"),
    ],
)
def test_a_wrong_value_is_refused_by_name(field: str, value: object, accepted: str) -> None:
    message = _refusal(_model_with(**{field: value}))
    assert f"models[3].{field} must be {accepted}" in message


def test_a_missing_and_an_unknown_field_are_refused_by_name() -> None:
    document = _model_with()
    del document["models"][3]["sxm"]
    assert "models[3].sxm is missing" in _refusal(document)
    assert "models[3].colour is not a known field" in _refusal(_model_with(colour="green"))
    assert "extra is not a known field" in _refusal({**SHIPPED, "extra": 1})


def test_infinite_prices_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"models\[3\]\.hourly_usd must be a number"):
        Catalog.parse(json.dumps(_model_with(hourly_usd=float("inf"))))


def test_duplicates_strangers_and_emptiness_are_refused() -> None:
    assert "each short_ref occurs once" in _refusal(_model_with(short_ref="3090"))
    assert "not_enabled must be" in _refusal({**SHIPPED, "not_enabled": ["voodoo2"]})
    assert "at least one model" in _refusal({**SHIPPED, "models": [], "not_enabled": []})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"source": "x"}', "1" * 1_000_001, "[" * 100_000])
def test_what_is_no_catalog_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        Catalog.parse(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(SHIPPED["models"][0])), _JSON)
def test_any_value_anywhere_gives_a_catalog_or_a_refusal(field: str, value: object) -> None:
    text = json.dumps(_model_with(**{field: value}))
    try:
        outcome: Catalog | str = Catalog.parse(text)
    except InvalidInputError as error:
        outcome = error.message
    if isinstance(outcome, str):
        assert outcome.startswith("The GPU catalog is not valid: ")
    else:
        assert len(outcome) == 26
