"""How deep a JSON text is nested, told without parsing it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.core.nesting import MOST_LEVELS, is_deeper

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='[]{}"\\\\a,:'),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[{"\\\\'), inner, max_size=3)
    ),
    max_leaves=30,
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(JSON, st.integers(0, 6), st.booleans())
def test_it_agrees_with_a_parser(value: object, levels: int, ascii_only: bool) -> None:
    assert is_deeper(json.dumps(value, ensure_ascii=ascii_only).encode(), levels) is (depth(value) > levels)


@given(st.binary(max_size=300), st.integers(0, 5))
def test_rubbish_is_no_trouble(text: bytes, levels: int) -> None:
    assert is_deeper(text, levels) in {True, False}


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_depth_beyond_the_limit_is_seen_in_a_large_text(opening: bytes) -> None:
    assert is_deeper(opening * 200_000)
    assert not is_deeper(b"[" + b"[]," * 100_000 + b"[]]")
    assert is_deeper(b'"' + b"\\\\" * 500_000 + b'"' + b"[" * (MOST_LEVELS + 1))
