"""Gigahorse frames pass the proxy byte for byte, in every way a client may send them."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest
import structlog

from gpupool.recompute.proxy import frame_clients
from polling import eventually
from proxy_stage import FrameNode, HttpNode, frame, nodes, proxy, read_frame

FRAMES = Path(__file__).parent.parent / "data" / "gigahorse_frames"


def recorded(name: str) -> list[bytes]:
    """Return what each connection of a recording carried."""
    data = (FRAMES / f"{name}.bin").read_bytes()
    rows = json.loads((FRAMES / f"{name}.json").read_text())
    pieces = {row["conn"]: data[row["offset"] : row["offset"] + row["len"]] for row in rows}
    return [pieces[number] for number in sorted(pieces)]


@pytest.mark.parametrize("recording", ["01_client36_server36", "03a_client36_to_proxy36"])
async def test_recorded_frames_pass_byte_for_byte(recording: str) -> None:
    requests, replies = recorded(f"{recording}.c2s"), recorded(f"{recording}.s2c")
    assert len(requests) == len(replies) >= 30
    answers = dict(zip(requests, replies, strict=True))
    node = FrameNode(lambda request: answers[request])
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        got = await asyncio.gather(*(stage.ask(request[4:]) for request in requests))
    assert [frame(answer) for answer in got] == replies
    assert sorted(node.seen) == sorted(requests)


async def test_many_frames_on_one_connection_are_answered_in_order() -> None:
    node = FrameNode()
    async with nodes(node), proxy(node) as stage:
        reader, writer = await stage.connect()
        writer.write(b"".join(frame(b"%d" % number) for number in range(50)))
        got = [await read_frame(reader) for _ in range(50)]
        writer.transport.abort()
    assert got == [frame(b"re:%d" % number) for number in range(50)]


async def test_a_frame_may_come_byte_by_byte() -> None:
    node = FrameNode()
    async with nodes(node), proxy(node) as stage:
        reader, writer = await stage.connect()
        for byte in frame(b"slowly"):
            writer.write(bytes([byte]))
            await writer.drain()
        assert await read_frame(reader) == frame(b"re:slowly")
        writer.transport.abort()


async def test_a_client_that_closed_its_sending_half_gets_its_answer_and_then_the_end() -> None:
    node = FrameNode()
    node.delay = 0.05
    async with nodes(node), proxy(node) as stage:
        reader, writer = await stage.connect()
        writer.write(frame(b"a") + frame(b"b"))
        writer.write_eof()
        assert [await read_frame(reader), await read_frame(reader)] == [frame(b"re:a"), frame(b"re:b")]
        assert await reader.read() == b""
        writer.transport.abort()


async def test_empty_frames_never_reach_a_node() -> None:
    node = FrameNode()
    async with nodes(node), proxy(node) as stage:
        reader, writer = await stage.connect()
        writer.write(frame(b"") + frame(b"one") + frame(b"") + frame(b"") + frame(b"two"))
        assert [await read_frame(reader), await read_frame(reader)] == [frame(b"re:one"), frame(b"re:two")]
        writer.transport.abort()
    assert node.seen == [frame(b"one"), frame(b"two")]


async def test_the_size_limit_holds_on_both_sides_of_it() -> None:
    node = FrameNode(lambda request: frame(request[4:]))
    async with nodes(node), proxy(node, frame_limit=1000) as stage:
        await stage.known(1)
        assert await stage.ask(b"x" * 1000) == b"x" * 1000
        assert await stage.exchange(frame(b"x" * 1001)) == b""
    assert len(node.seen) == 1


async def test_the_largest_frame_of_the_original_passes_when_allowed() -> None:
    node = FrameNode(lambda request: request)
    async with nodes(node), proxy(node, frame_limit=1024 * 1024) as stage:
        await stage.known(1)
        assert await stage.ask(b"y" * 1024 * 1024) == b"y" * 1024 * 1024


async def test_connections_are_reused_and_capped_per_node() -> None:
    node = FrameNode()
    node.delay = 0.005
    async with nodes(node), proxy(node, sockets=3) as stage:
        await stage.known(1)
        probes = node.connections
        await asyncio.gather(*(stage.ask(b"%d" % number) for number in range(60)))
        assert node.peak <= 3 * 4
        assert node.connections - probes < 30
        # A real server has few places; idle connections leave them soon.
        await eventually(lambda: not stage.core.directory.nodes[node.address].open, 20, "leaving idle places")


async def test_a_frame_client_without_a_gigahorse_node_is_closed_at_once_and_told_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capture = structlog.testing.LogCapture()
    monkeypatch.setattr(frame_clients, "log", structlog.wrap_logger(None, processors=[capture]))
    node = HttpNode()
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        assert await stage.exchange(frame(b"question")) == b""
    assert node.seen == []
    assert [line["event"] for line in capture.entries] == ["gigahorse_client_refused"]
    assert "-n HOST[:PORT]" in capture.entries[0]["remedy"]


async def test_tls_is_recognised_before_a_frame_of_the_same_first_bytes() -> None:
    node = FrameNode()
    async with nodes(node), proxy(node) as stage:
        assert await stage.exchange(b"\x16\x03\x01\x00" + b"h" * 200) == b""
    assert not [seen for seen in node.seen if seen.startswith(b"\x16\x03")]


async def test_a_client_that_resets_cancels_its_request() -> None:
    node = FrameNode()
    node.mode = "hang"
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        _, writer = await stage.connect()
        writer.write(frame(b"never"))
        await eventually(lambda: node.seen, 10, "the request reaching the node")
        writer.transport.get_extra_info("socket").setsockopt(1, 13, b"\x01\0\0\0\0\0\0\0")
        writer.transport.abort()
        await eventually(lambda: not stage.core.frames.active, 3, "the request being cancelled")
        assert not stage.core.directory.nodes[node.address].open


def test_the_recordings_show_that_the_original_proxy_changes_nothing() -> None:
    sides = [
        sorted(recorded(f"{name}.c2s")) for name in ("03a_client36_to_proxy36", "03b_proxy36_to_server36")
    ]
    assert all(before == after for before, after in pairwise(sides))
