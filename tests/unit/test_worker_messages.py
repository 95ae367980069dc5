"""What server and worker say to each other arrives as it was said, and what is no message is seen to be none."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.recompute.server.messages import (
    LONGEST,
    Ask,
    BrokenMessageError,
    Cancel,
    Done,
    Failed,
    Message,
    Ping,
    Pong,
    Ready,
    Unfit,
    encode,
    receive,
)
from gpupool.recompute.server.questions import Question
from gpupool.solvers.questions import K_RANGE, STRENGTH_RANGE, SolveQuestion

NUMBERS = st.integers(0, 2**40)
HASHES = st.binary(min_size=32, max_size=32)
QUESTIONS = st.builds(
    Question,
    plot_id=HASHES,
    level=st.integers(1, 9),
    line_points=st.lists(st.integers(0, 2**128 - 1), max_size=32).map(tuple),
    challenge=st.none() | HASHES,
    k=st.just(32),
)
SOLVE_QUESTIONS = st.builds(
    SolveQuestion,
    partial_proof=st.binary(min_size=128, max_size=128),
    plot_id=HASHES,
    k=st.sampled_from(list(K_RANGE)),
    strength=st.sampled_from(list(STRENGTH_RANGE)),
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Ask, NUMBERS, st.sampled_from(["proof", "quality"]), QUESTIONS, st.floats(0, 600)),
    st.builds(Ask, NUMBERS, st.just("solve"), SOLVE_QUESTIONS, st.floats(0, 600)),
    st.builds(Cancel, NUMBERS),
    st.builds(Ping),
    st.builds(Ready),
    st.builds(Unfit, st.text(max_size=20), st.text(max_size=99), st.text(max_size=99)),
    st.builds(Done, NUMBERS, st.lists(st.integers(0, 2**32 - 1), max_size=64).map(tuple), st.floats(0, 600)),
    st.builds(Failed, NUMBERS, st.text(max_size=20), st.text(max_size=99), st.text(max_size=99)),
    st.builds(Pong, st.dictionaries(NUMBERS, NUMBERS, max_size=64)),
)


@given(st.lists(MESSAGES, max_size=5))
def test_messages_arrive_as_they_were_sent_and_the_end_is_seen(messages: list[Message]) -> None:
    stream = io.BytesIO(b"".join(map(encode, messages)))
    assert [receive(stream) for _ in messages] == messages
    assert receive(stream) is None


@given(MESSAGES, st.integers(1, 8))
def test_a_message_that_was_cut_is_the_end(message: Message, cut: int) -> None:
    assert receive(io.BytesIO(encode(message)[:-cut])) is None


@given(st.binary(max_size=200))
def test_what_is_no_message_is_refused(noise: bytes) -> None:
    with pytest.raises(BrokenMessageError):
        receive(io.BytesIO(len(noise).to_bytes(4, "little") + noise))


def test_a_length_that_no_message_has_is_refused_before_it_is_read() -> None:
    with pytest.raises(BrokenMessageError):
        receive(io.BytesIO((LONGEST + 1).to_bytes(4, "little")))
