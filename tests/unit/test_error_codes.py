"""Every error has a stable code of its own, one line of cause, one of remedy, and statuses that mean something."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from gpupool.core.errors import GpupoolError


@pytest.fixture(scope="module")
def generator(checkout: Path) -> dict[str, Any]:
    return runpy.run_path(str(checkout / "scripts" / "generate_error_page.py"))


@pytest.fixture(scope="module")
def classes(generator: dict[str, Any]) -> list[type[GpupoolError]]:
    found: list[type[GpupoolError]] = generator["error_classes"]()
    assert len(found) > 30
    return found


def test_the_reference_page_is_up_to_date(generator: dict[str, Any]) -> None:
    page = generator["page"]()
    assert generator["PAGE"].read_text() == page, "run `python scripts/generate_error_page.py`"


def test_every_code_is_on_the_page_once_per_class(
    generator: dict[str, Any], classes: list[type[GpupoolError]]
) -> None:
    listed = re.findall(
        r"^\| `([a-z_]+)` \|", generator["page"]().split("## Codes of the gateway")[0], re.MULTILINE
    )
    assert sorted(listed) == sorted(kind.code for kind in classes if "code" in vars(kind))


def test_a_code_belongs_to_one_class(classes: list[type[GpupoolError]]) -> None:
    """A class without a code of its own is a case of its parent; two that declare the same code are a mistake."""
    declared = [kind.code for kind in classes if "code" in vars(kind)]
    assert sorted(declared) == sorted(set(declared))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in declared)


def test_cause_and_remedy_are_one_sentence_of_plain_words(classes: list[type[GpupoolError]]) -> None:
    for kind in classes:
        cause = (kind.__doc__ or "").strip().splitlines()[0]
        for text in (cause, kind.default_remedy):
            assert text[0].isupper(), (kind, text)
            assert text.endswith((".", ")")), (kind, text)
            assert "\n" not in text, kind


def test_statuses_are_those_of_the_documented_kinds(
    generator: dict[str, Any], classes: list[type[GpupoolError]]
) -> None:
    for kind in classes:
        assert 400 <= kind.status < 600, kind
        assert kind.exit_code in generator["EXIT_CODES"], kind
        assert kind.exit_code not in {0, 130}, kind


def test_every_code_of_the_gateway_is_explained_and_none_that_it_lacks(generator: dict[str, Any]) -> None:
    assert set(generator["gateway_codes"]()) == set(generator["GATEWAY_MEANINGS"])
