"""The proxy as a process: the lines operators know, its exit codes, and that SIGTERM always ends it."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from polling import eventually
from proxy_program import COMMAND, DROP_IN, program
from proxy_stage import FrameNode, frame, nodes, read_frame


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path / "home"))


async def test_the_drop_in_says_what_the_original_says(free_port: int) -> None:
    async with program(DROP_IN, "-p", str(free_port), "-n", "localhost", "-n", "192.0.2.6:11000") as started:
        await started.listening()
    assert started.out == [
        "Node: localhost (port 11989)",
        "Node: 192.0.2.6 (port 11000)",
        f"ReComputeProxy listening on 0.0.0.0 port {free_port}",
    ]


async def test_the_command_listens_on_loopback_until_told_otherwise(free_port: int) -> None:
    async with program(COMMAND, "recompute", "proxy", "-p", str(free_port), "-n", "localhost") as started:
        await started.listening()
    assert started.out[-1] == f"ReComputeProxy listening on 127.0.0.1 port {free_port}"


async def test_without_nodes_it_ends_with_2_and_the_reason(free_port: int) -> None:
    for code, words in ((DROP_IN, []), (COMMAND, ["recompute", "proxy"])):
        async with program(code, *words, "-p", str(free_port)) as started:
            assert await started.ended() == 2
        assert "no servers to forward to" in started.log[0]
        assert "-n HOST[:PORT]" in started.log[1]


async def test_a_node_that_is_the_proxy_itself_ends_it_with_2(free_port: int) -> None:
    async with program(DROP_IN, "-p", str(free_port), "-n", f"localhost:{free_port}") as started:
        assert await started.ended() == 2
    assert any("is this proxy itself" in line for line in started.log)


async def test_a_taken_port_names_its_holder_and_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with program(DROP_IN, "--host", "127.0.0.1", "-p", str(port), "-n", "localhost:1") as started:
            assert await started.ended() == 3
    assert f"taken by pid {os.getpid()}" in started.log[0]
    assert "-p" in started.log[1]
    assert f"-n localhost:{port}" in started.log[1]


async def test_each_request_is_one_line_that_operators_search_for(free_port: int) -> None:
    node = FrameNode()
    async with (
        nodes(node),
        program(DROP_IN, "--host", "127.0.0.1", "-p", str(free_port), "-n", node.address) as started,
    ):
        await started.listening()
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        writer.write(frame(b"a") + frame(b"b"))
        assert [await read_frame(reader), await read_frame(reader)] == [frame(b"re:a"), frame(b"re:b")]
        writer.transport.abort()
        started.process.send_signal(signal.SIGTERM)
        assert await started.ended() == 0
    lines = [line for line in started.log if "Request from 127.0.0.1 forwarded to node" in line]
    assert len(lines) == 2
    assert all(node.address in line and "result = ok" in line and "id = req-" in line for line in lines)


async def test_a_stop_finishes_what_is_under_way(free_port: int) -> None:
    node = FrameNode()
    node.delay = 0.5
    async with (
        nodes(node),
        program(DROP_IN, "--host", "127.0.0.1", "-p", str(free_port), "-n", node.address) as started,
    ):
        await started.listening()
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        writer.write(frame(b"late"))
        await eventually(lambda: frame(b"late") in node.seen, 20, "the request reaching the node")
        started.process.send_signal(signal.SIGTERM)
        assert await read_frame(reader) == frame(b"re:late")
        assert await started.ended() == 0
        writer.transport.abort()


async def test_a_stop_ends_it_while_a_node_hangs_and_another_cannot_be_reached(free_port: int) -> None:
    node = FrameNode()
    async with nodes(node), program(
        COMMAND, "recompute", "proxy", "-p", str(free_port), "--drain", "0.3", "--deadline", "60",
        "-n", node.address, "-n", "192.0.2.1",
    ) as started:  # fmt: skip
        await started.listening()
        node.mode = "hang"
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        writer.write(frame(b"never"))
        await eventually(lambda: frame(b"never") in node.seen, 20, "the request reaching the node")
        started.process.send_signal(signal.SIGTERM)
        assert await started.ended() == 0
        assert await reader.read() == b""
        writer.transport.abort()
    assert any("proxy_gave_up_requests" in line for line in started.log)
