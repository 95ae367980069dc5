"""Messages of Chia's protocol are what Chia's own library makes of them, and nothing else is taken for one."""

import contextlib
import struct

import chia_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.recompute.solver_front.wire import (
    CAPABILITIES,
    MESSAGE_LIMIT,
    Handshake,
    Kind,
    Message,
    NodeType,
    Solution,
    Solve,
    WireError,
)

U8, U16 = st.integers(0, 255), st.integers(0, 65535)
TEXT = st.text(max_size=60)
MESSAGES = st.builds(Message, U8, st.none() | U16, st.binary(max_size=300))
HANDSHAKES = st.builds(
    Handshake, TEXT, TEXT, TEXT, U16, U8, st.lists(st.tuples(U16, TEXT), max_size=10).map(tuple)
)
SOLVES = st.builds(Solve, st.binary(min_size=128, max_size=128), st.binary(min_size=32, max_size=32), U8, U8)
SOLUTIONS = st.builds(Solution, st.binary(min_size=128, max_size=128), st.binary(max_size=600))
READERS = (Message, Handshake, Solve, Solution)


@given(MESSAGES | HANDSHAKES | SOLVES | SOLUTIONS)
def test_what_is_written_is_read(value: Message | Handshake | Solve | Solution) -> None:
    assert type(value).decode(value.encode()) == value


@given(MESSAGES | HANDSHAKES | SOLVES | SOLUTIONS, st.data())
def test_too_much_and_too_little_are_refused(
    value: Message | Handshake | Solve | Solution, data: st.DataObject
) -> None:
    whole = value.encode()
    with pytest.raises(WireError):
        type(value).decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(WireError):
        type(value).decode(whole + b"\0")


@given(st.binary(max_size=400))
def test_no_bytes_break_a_reader(data: bytes) -> None:
    for reader in READERS:
        with contextlib.suppress(WireError):
            reader.decode(data)


def test_announced_sizes_are_not_believed() -> None:
    with pytest.raises(WireError, match="are allowed"):
        Message.decode(b"\x01\0" + struct.pack(">I", MESSAGE_LIMIT + 1) + bytes(10))
    handshake = Handshake("mainnet", "0.0.38", "2.7.5", 8447, NodeType.FARMER, ())
    with pytest.raises(WireError, match="capabilities"):
        Handshake.decode(handshake.encode()[:-4] + struct.pack(">I", 2**32 - 1))
    with pytest.raises(WireError, match="neither"):
        Message.decode(b"\x01\2" + bytes(6))


def test_chias_library_reads_and_writes_the_same() -> None:
    ours = Handshake("mainnet", "0.0.38", "2.7.5", 8666, NodeType.FARMER)
    theirs = chia_rs.Handshake.from_bytes(ours.encode())
    assert (theirs.network_id, theirs.protocol_version, theirs.software_version) == (
        "mainnet",
        "0.0.38",
        "2.7.5",
    )
    assert (int(theirs.server_port), tuple(theirs.capabilities)) == (8666, CAPABILITIES)
    assert bytes(theirs) == ours.encode()
    for message in (Message(Kind.HANDSHAKE, None, b"body"), Message(20, 7, b"")):
        same = chia_rs.Message.from_bytes(message.encode())
        assert (int(same.msg_type), same.id, bytes(same.data)) == (message.kind, message.number, message.body)
