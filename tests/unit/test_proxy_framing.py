"""How the first bytes of a connection are told apart, and where a frame ends."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.recompute.proxy.framing import FRAME_MOST, FrameError, Speech, frame_end, sniff


@given(st.binary(max_size=FRAME_MOST // 512), st.binary(max_size=50))
def test_a_frame_ends_where_its_length_says(payload: bytes, more: bytes) -> None:
    data = struct.pack("<I", len(payload)) + payload + more
    assert frame_end(data, FRAME_MOST) == 4 + len(payload)
    assert frame_end(data[:3], FRAME_MOST) == 0


@given(st.integers(0, 2**32 - 1), st.integers(1, FRAME_MOST))
def test_only_sizes_within_the_limit_are_frames(size: int, limit: int) -> None:
    head = struct.pack("<I", size)
    if size > limit:
        with pytest.raises(FrameError):
            frame_end(head, limit)
    else:
        assert frame_end(head, limit) == 4 + size


@given(st.integers(1, FRAME_MOST))
def test_every_allowed_frame_but_those_that_look_like_tls_is_told(size: int) -> None:
    head = struct.pack("<I", size)
    assert sniff(head) is (Speech.TLS if head[:2] == b"\x16\x03" else Speech.FRAMES)


@pytest.mark.parametrize(
    ("first", "speech"),
    [
        (b"", Speech.UNDECIDED),
        (b"\x16", Speech.UNDECIDED),
        (b"GET", Speech.UNDECIDED),
        (b"\x16\x03", Speech.TLS),
        (b"\x16\x03\x01\x00\xff", Speech.TLS),
        (b"GET /", Speech.HTTP),
        (b"POST", Speech.HTTP),
        (b"\x00\x00\x00\x00", Speech.FRAMES),
    ],
)
def test_what_a_connection_speaks(first: bytes, speech: Speech) -> None:
    assert sniff(first) is speech
