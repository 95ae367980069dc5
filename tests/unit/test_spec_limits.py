"""A spec is read strictly: what only serves to exhaust its reader is refused, and nothing makes the reader fail."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.contracts.spec import MAX_DEPTH, MAX_SPEC_BYTES, MalformedSpecError, SpecFile, parse_spec
from gpupool.core.errors import InvalidInputError, TooLargeError

GOOD = "name: a\ncommand: [x]\n"


def refusal(text: str) -> str:
    with pytest.raises(MalformedSpecError) as caught:
        parse_spec(text, "spec.yaml")
    return caught.value.message


def test_aliases_are_refused_where_they_stand() -> None:
    bomb = "a: &a [x,x]\n" + "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefg", "bcdefgh", strict=True)
    )
    assert refusal(bomb).startswith("spec.yaml:2:8: a spec has no aliases")
    assert "aliases" in refusal("command: &a [*a]\n")


def test_tags_are_refused_where_they_stand() -> None:
    assert refusal(GOOD + "port: !!int ''\n") == "spec.yaml:3:7: a spec has no tags (!name)."
    assert "tags" in refusal("!!python/object/apply:os.system ['true']")


def test_deep_nesting_is_refused_with_its_limit() -> None:
    for text in ("[" * 30_000, "name: " + "{a: " * 12_000, "- " * 20_000 + "x"):
        assert f"nested deeper than {MAX_DEPTH} levels" in refusal(text)


def test_a_field_that_stands_twice_is_refused() -> None:
    assert (
        refusal("name: a\nname: b\ncommand: [x]\n")
        == "spec.yaml:2:1: the field name stands here a second time."
    )
    assert "field A stands" in refusal(GOOD + "env:\n  A: x\n  A: y\n")


def test_a_large_text_is_refused_with_the_limit() -> None:
    with pytest.raises(TooLargeError, match=str(MAX_SPEC_BYTES)):
        parse_spec(GOOD + "#" * MAX_SPEC_BYTES)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("command", ["x"] * 257),
        ("command", ["x" * 4097]),
        ("command", ["a\0b"]),
        ("env", {f"A{number}": "" for number in range(129)}),
        ("env", {"A": "x" * 8193}),
        ("env", {"A": "\0"}),
        ("env", {"A B": "x"}),
        ("models", ["m"] * 65),
        ("include", ["m"] * 65),
        ("name", "a" * 64),
        ("replicas", 1001),
        ("health", "/" + "x" * 500),
        ("image", "x" * 501),
    ],
)
def test_each_field_has_a_limit(field: str, value: object) -> None:
    text = yaml.safe_dump({"name": "a", "command": ["x"], field: value})
    assert field in refusal(text)


@settings(max_examples=300)
@given(st.text())
def test_no_text_makes_the_reader_fail(text: str) -> None:
    read(text)


TOKENS = [
    *(
        "name",
        "command",
        "env",
        ": ",
        "- ",
        "\n",
        "  ",
        "[",
        "]",
        "{",
        "}",
        ",",
        "&a ",
        "*a",
        "!!int ",
        "!x ",
        "'",
        '"',
    ),
    *(
        "|",
        ">",
        "#",
        "---",
        "...",
        "?",
        "%TAG",
        "1e999",
        "0x1",
        "12:30:45",
        "2001-99-99",
        "~",
        "\t",
        "\0",
        "a",
        "=",
        "<<",
    ),
    *("0b", "0o9", "1_", "_", "+", "-.inf", "!!python/object:os.system "),
]


@settings(max_examples=500)
@given(st.lists(st.sampled_from(TOKENS), max_size=40).map("".join))
def test_no_yaml_like_text_makes_the_reader_fail(text: str) -> None:
    read(text)
    read(GOOD + text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(sorted(SpecFile.model_fields)), VALUES, max_size=6))
def test_no_fields_make_the_reader_fail(fields: dict[str, object]) -> None:
    read(yaml.safe_dump({"name": "a", "command": ["x"], **fields}))


def read(text: str) -> None:
    """Read a spec; it is one, or it is refused in one line."""
    try:
        assert isinstance(parse_spec(text), SpecFile)
    except InvalidInputError as error:
        assert error.message
        assert "\n" not in error.message
