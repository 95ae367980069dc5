"""Server-sent events pass byte for byte, whole event by whole event, however the network cuts them."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.gateway.naming import ModelName
from gpupool.gateway.streams import EventStream, EventTooLargeError

ENDINGS = st.sampled_from([b"\n", b"\r\n", b"\r"])
TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=12)


def run(data: bytes, cuts: list[int], model: str = "asked") -> bytes:
    """Feed ``data`` cut at the given places and return all that came out."""
    stream, places = (
        EventStream(ModelName(model)),
        sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)}),
    )
    pieces = [data[start:end] for start, end in pairwise(places)]
    return b"".join(stream.feed(piece) for piece in pieces) + stream.rest()


@st.composite
def chunks(draw: st.DrawFn) -> tuple[dict[str, object], bytes]:
    """One completion chunk and its bytes as an event, in one of the legal forms."""
    value: dict[str, object] = {"id": draw(TEXTS), "model": draw(TEXTS), "choices": [{"delta": draw(TEXTS)}]}
    if draw(st.booleans()):
        value["nested"] = {"model": draw(TEXTS)}
    text = json.dumps(
        value, ensure_ascii=draw(st.booleans()), separators=draw(st.sampled_from([(",", ":"), None]))
    )
    ending = draw(ENDINGS)
    before = draw(st.sampled_from([b"", b": a comment" + ending, b"event: chunk" + ending]))
    return value, before + draw(st.sampled_from([b"data: ", b"data:"])) + text.encode() + ending + ending


def data_of(stream: bytes) -> list[dict[str, object]]:
    """Parse a stream's data as a client does."""
    text = stream.decode().replace("\r\n", "\n").replace("\r", "\n")
    lines = [line[5:] for line in text.split("\n") if line.startswith("data:")]
    return [json.loads(line) for line in lines]


@given(st.lists(chunks(), max_size=4), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_gives_what_the_whole_gives_and_only_the_model_differs(
    sent: list[tuple[dict[str, object], bytes]], cuts: list[int]
) -> None:
    data = b"".join(event for _, event in sent)
    whole = run(data, [])
    assert run(data, cuts) == whole
    assert run(data, list(range(len(data)))) == whole
    assert data_of(whole) == [value | {"model": "asked"} for value, _ in sent]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_unknown_bytes_pass_untouched(data: bytes, cuts: list[int]) -> None:
    assert run(data, cuts) == data


@given(st.lists(st.sampled_from([b"\n", b"\r", b"data: x", b'data: {"model":"up"}', b": c"]), max_size=12))
def test_every_cut_of_mixed_line_ends_gives_the_same(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert run(data, list(range(len(data)))) == run(data, [])


def test_a_whole_event_leaves_before_the_next_byte_arrives() -> None:
    stream = EventStream(ModelName("asked"))
    assert stream.feed(b'data: {"model":"up') == b""
    assert stream.feed(b'"}\n') == b""
    assert stream.feed(b"\n") == b'data: {"model":"asked"}\n\n'
    assert stream.feed(b": ping\n\ndata: hal") == b": ping\n\n"


def test_only_the_named_value_changes_and_spacing_stays() -> None:
    event = b'event: m\r\nid: 7\r\ndata:{ "model" :  "up" , "x": 1.50 }\r\n\r\n'
    assert run(event, []) == b'event: m\r\nid: 7\r\ndata:{ "model" :  "asked" , "x": 1.50 }\r\n\r\n'


def test_data_over_several_lines_is_one_object() -> None:
    event = b'data: {"id": 1,\ndata: "model":\ndata: "up"}\n\n'
    assert json.loads(b"".join(line[6:] for line in run(event, []).splitlines())) == {
        "id": 1,
        "model": "asked",
    }


def test_text_that_only_looks_like_a_model_field_is_left_alone() -> None:
    said = json.dumps({"choices": [{"delta": {"content": 'say "model": "x" and \\"model": "y"'}}]})
    nested = '{"choices":[{"model":"inner"}]}'
    event = f"data: {said}\n\ndata: {nested}\n\ndata: [DONE]\n\n".encode()
    assert run(event, []) == event


def test_half_a_surrogate_pair_in_an_escape_survives() -> None:
    event = b'data: {"model":"up","choices":[{"model":"inner","text":"\\ud83d"}]}\n\n'
    assert data_of(run(event, [])) == [{"model": "asked", "choices": [{"model": "inner", "text": "\ud83d"}]}]


def test_the_end_is_seen_and_a_missing_last_empty_line_is_fine() -> None:
    stream = EventStream(ModelName("asked"))
    assert stream.feed(b"data: [DONE]\n") == b""
    assert not stream.finished
    assert stream.rest() == b"data: [DONE]\n"
    assert stream.finished


@pytest.mark.parametrize(
    ("before", "piece"), [(b"", b"x" * 101), (b"x" * 60, b"y" * 60), (b"", b"x" * 101 + b"\n\n")]
)
def test_an_event_above_the_limit_is_refused(before: bytes, piece: bytes) -> None:
    stream = EventStream(ModelName("asked"), limit=100)
    assert stream.feed(before) == b""
    with pytest.raises(EventTooLargeError):
        stream.feed(piece)


@given(TEXTS, TEXTS)
def test_a_plain_object_gets_the_name_that_was_asked_for(asked: str, upstream: str) -> None:
    payload = json.dumps({"model": upstream, "n": 1}, ensure_ascii=False).encode()
    assert json.loads(ModelName(asked).put_into(payload)) == {"model": asked, "n": 1}


@pytest.mark.parametrize(
    "payload",
    [b"", b'"model"', b'["model"]', b'{"model":7}', b'{"model":"a"', b'{"model":"a"}\xff', b"[" * 9000],
)
def test_what_has_no_model_to_rename_comes_back_as_it_was(payload: bytes) -> None:
    assert ModelName("asked").put_into(payload) is payload
