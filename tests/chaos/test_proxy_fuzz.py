"""Whatever bytes come, from clients or from nodes, the proxy goes on serving and forgets what was broken."""

import asyncio
import contextlib
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polling import eventually
from proxy_stage import FrameNode, HttpNode, frame, nodes, proxy

LIMIT = 4096
PIECES = st.one_of(
    st.binary(max_size=300),
    st.binary(min_size=1, max_size=200).map(frame),
    st.just(frame(b"")),
    st.integers(LIMIT + 1, 2**32 - 1).map(lambda size: size.to_bytes(4, "little") + b"x"),
    st.sampled_from(
        [
            b"GET /healthz HTTP/1.1\r\n\r\n",
            b"POST /v1/proofs HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
            b"POST /v1/proofs HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
            b"POST /v1/proofs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            b"POST /v1/proofs HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nzz\r\n",
            b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x00\x05hello",
        ]
    ),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(streams=st.lists(st.lists(PIECES, max_size=6), min_size=1, max_size=12))
def test_bytes_of_clients(streams: list[list[bytes]]) -> None:
    async def scene() -> None:
        theirs, ours = FrameNode(), HttpNode()
        async with nodes(theirs, ours), proxy(theirs, ours, frame_limit=LIMIT, deadline_seconds=2.0) as stage:
            await stage.known(2)

            async def client(pieces: list[bytes]) -> None:
                _, writer = await stage.connect()
                with contextlib.suppress(ConnectionError):
                    for piece in pieces:
                        writer.write(piece)
                        await writer.drain()
                        await asyncio.sleep(0)
                writer.transport.abort()

            await asyncio.gather(*(client(pieces) for pieces in streams))
            assert await stage.ask(b"still there") == b"re:still there"
            await eventually(lambda: not stage.core.clients, 10, "all clients being forgotten")
            assert not stage.core.frames.active
            assert not stage.core.http.active

    asyncio.run(scene())


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(garbage=st.lists(st.binary(min_size=1, max_size=400), min_size=1, max_size=8))
def test_bytes_of_nodes(garbage: list[bytes]) -> None:
    source = random.Random(repr(garbage))

    async def scene() -> None:
        good, bad = FrameNode(), FrameNode(lambda request: source.choice(garbage))
        async with nodes(good, bad), proxy(good, bad) as stage:
            await stage.known(2)
            asked = [b"%d" % number for number in range(12)]
            answers = await asyncio.gather(*(stage.ask(payload) for payload in asked))
            # What has the form of a frame must be passed on: its content is closed to us.
            forms = {piece[4:] for piece in garbage if len(piece) > 4 and piece[:4] == frame(piece[4:])[:4]}
            assert all(
                answer == b"re:" + payload or any(piece[4:].startswith(answer) for piece in garbage)
                for payload, answer in zip(asked, answers, strict=True)
            ), forms

    asyncio.run(scene())


async def test_slow_clients_lose_their_place() -> None:
    node = FrameNode()
    async with nodes(node), proxy(node, head_seconds=0.3, idle_seconds=0.6) as stage:
        await stage.known(1)
        slow = [b"", b"\x10", frame(b"half of it")[:7], b"POST /v1/proofs HTTP/1.1\r\nX: ", b"GET /"]
        ended = await asyncio.gather(*(stage.exchange(piece) for piece in slow))
        assert ended == [b""] * len(slow)
        reader, writer = await stage.connect()
        writer.write(frame(b"one"))
        assert await reader.readexactly(10) == frame(b"re:one")
        # Idle for longer than a client may be.
        assert await reader.read() == b""
        writer.transport.abort()
        assert not stage.core.clients


async def test_more_clients_than_there_are_places_are_turned_away_while_all_wait_for_answers() -> None:
    node = FrameNode()
    async with nodes(node), proxy(node, connections=5, deadline_seconds=60.0, drain_seconds=0.1) as stage:
        await stage.known(1)
        node.mode = "hang"
        places = [await stage.connect() for _ in range(5)]
        for _, writer in places:
            writer.write(frame(b"never"))
        await eventually(lambda: len(stage.core.frames.active) == 5, 20, "the clients being served")
        assert await stage.exchange(frame(b"one too many")) == b""
        assert stage.core.turned_away_count == 1
        for _, writer in places:
            writer.transport.abort()


@pytest.mark.parametrize(
    "said", [b"", b"\x10", frame(b"half of it")[:7], b"POST /v1/pro", b"GET /healthz HTTP/1.1\r\n\r\n"]
)
async def test_who_holds_connections_without_using_them_keeps_nobody_out(said: bytes) -> None:
    node = FrameNode()
    async with nodes(node), proxy(node, connections=8) as stage:
        await stage.known(1)
        kept = await stage.connect()
        idle = []
        for number in range(40):
            idle.append(await stage.connect())
            idle[-1][1].write(said)
            assert await stage.ask(b"%d" % number) == b"re:%d" % number
        assert stage.core.turned_away_count == 0
        assert len(stage.core.clients) <= 8
        for _, writer in [*idle, kept]:
            writer.transport.abort()
