"""A validator's list cut, split, stuffed and garbled in every position."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.validators.chutes import line_stream
from gpupool.validators.chutes.line_stream import BrokenListError, LineStream

ITEMS: list[dict[str, Any]] = [
    {"chute_id": "a", "code": 'print("\n{\\u0000}")'},
    {"n": 1, "readme": "你好 data: {"},
    {},
]


def encoded(items: list[dict[str, Any]]) -> bytes:
    return b"".join(b"data: " + json.dumps(item).encode() + b"\n\n" for item in items)


def read(*pieces: bytes) -> list[dict[str, Any]]:
    stream = LineStream("chutes")
    for piece in pieces:
        stream.feed(piece)
    return stream.end()


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20)), min_size=1), st.data())
def test_a_list_comes_through_in_pieces_of_any_size(items: list[dict[str, Any]], data: st.DataObject) -> None:
    text = encoded(items)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(*pieces) == items


def test_a_list_cut_anywhere_is_refused_or_a_shorter_list() -> None:
    text = encoded(ITEMS)
    whole = {len(encoded(ITEMS[:number])): number for number in range(1, len(ITEMS) + 1)}
    for at in range(len(text) + 1):
        if at in whole:
            assert read(text[:at]) == ITEMS[: whole[at]]
        elif at == 0:
            assert read(b"") == []
        else:
            with pytest.raises(BrokenListError, match="validator's list of chutes"):
                read(text[:at])


@pytest.mark.parametrize(
    ("text", "silent"),
    [
        (b"data: NO_ITEMS\n", False),
        (b": alive\n\ndata: NO_ITEMS\n\n", False),
        (b"", True),
        (b"\n\n", True),
        (b": alive\n\n", True),
    ],
    ids=range(5),
)
def test_an_empty_list_says_so_or_is_silent(text: bytes, silent: bool) -> None:
    stream = LineStream("chutes")
    stream.feed(text)
    assert (stream.end(), stream.silent) == ([], silent)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"data: NO_ITEMS", "within a line"),
        (b'data: {"a": 1}\n', "within an item"),
        (b'data: {"a": 1}\ndata: {"b": 1}\n\n', "no item"),
        (b'data: {"a": 1}\n\ndata: NO_ITEMS\n', "nothing is there"),
        (b"<html>Bad gateway</html>\n", "no item"),
        (b'{"detail": "error"}\n', "no item"),
        (b"data: [1]\n\n", "number 1"),
        (b"data: {'a': 1}\n\n", "number 1"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "number 1"),
        (b'data: {"a": ' + b"[" * 50 + b"]" * 50 + b"}\n\n", "number 1"),
        (b"data: \xff\xfe\n\n", "number 1"),
        (b"data:\n\n", "no item"),
    ],
    ids=range(12),
)
def test_what_is_no_list(text: bytes, why: str) -> None:
    with pytest.raises(BrokenListError, match=why):
        read(text)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    long = b'data: {"code": "' + b"x" * line_stream.MOST_LINE_BYTES
    with pytest.raises(BrokenListError, match="line of more than"):
        read(long)
    with pytest.raises(BrokenListError, match="beyond"):
        read(long + b'"}\n\n')
    monkeypatch.setattr(line_stream, "MOST_ITEMS", 2)
    with pytest.raises(BrokenListError, match="beyond 2 items"):
        read(encoded(ITEMS))
    monkeypatch.setattr(line_stream, "MOST_BYTES", 50)
    with pytest.raises(BrokenListError, match="longer than 50"):
        read(encoded(ITEMS[:1]) * 3)


def test_a_line_as_long_as_an_app_may_make_it() -> None:
    item = {"code": "\0" * 150_000, "readme": "\0" * 150_000}
    assert read(encoded([item])) == [item]
