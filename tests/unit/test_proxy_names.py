"""Nodes that are given by name: what is known of them outlives a name server that is slow or away."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from gpupool.recompute.proxy import names
from gpupool.recompute.proxy.names import addresses_of, moved
from gpupool.recompute.proxy.nodes import Node, NodeWish
from polling import eventually
from proxy_stage import FrameNode, nodes, proxy

Answer = list[str] | Exception


class NameServer:
    """Answers what the test says, once ``gate`` is open."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.asked, self.gate = answer, 0, asyncio.Event()
        self.gate.set()

    async def getaddrinfo(self, host: str, port: int, **more: Any) -> list[Any]:
        self.asked += 1
        await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.answer]


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], NameServer]:
    """Return what puts a name server in the place of the system's, in the running loop."""

    def put(answer: Answer) -> NameServer:
        made = NameServer(answer)
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", made.getaddrinfo, raising=False)
        return made

    return put


def node(host: str = "rig.farm") -> Node:
    return Node(NodeWish(host, 11989))


NO_NAME = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


async def test_an_address_needs_no_name_server(name_server: Callable[[Answer], NameServer]) -> None:
    server = name_server(NO_NAME)
    for host in ("192.168.1.5", "::1", "fe80::1%eth0"):
        assert await addresses_of(node(host)) == (host,)
    assert server.asked == 0


async def test_what_is_known_is_used_and_looked_up_again_when_it_is_old(
    name_server: Callable[[Answer], NameServer],
) -> None:
    server, rig = name_server(["10.0.0.1", "10.0.0.1", "10.0.0.2"]), node()
    assert await addresses_of(rig) == ("10.0.0.1", "10.0.0.2")
    assert await addresses_of(rig) == ("10.0.0.1", "10.0.0.2")
    assert server.asked == 1
    server.answer = ["10.0.0.9"]
    rig.look_up_at = 0.0
    assert await addresses_of(rig) == ("10.0.0.9",)


async def test_a_name_server_that_fails_or_hangs_takes_no_known_node_away(
    name_server: Callable[[Answer], NameServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_PATIENCE_SECONDS", 0.0)
    server, rig = name_server(["10.0.0.1"]), node()
    await addresses_of(rig)
    server.answer = NO_NAME
    rig.look_up_at = 0.0
    assert [await addresses_of(rig) for _ in range(3)] == [("10.0.0.1",)] * 3
    await eventually(lambda: rig.looking_up is None, 20, "the end of the look")
    server.gate.clear()
    rig.look_up_at = 0.0
    assert [await addresses_of(rig) for _ in range(3)] == [("10.0.0.1",)] * 3
    assert server.asked == 3, "one look at a time"
    server.answer = ["10.0.0.2"]
    server.gate.set()
    await eventually(lambda: rig.addresses == ("10.0.0.2",), 20, "the new address")


async def test_a_node_that_cannot_be_connected_is_looked_up_again_soon(
    name_server: Callable[[Answer], NameServer],
) -> None:
    name_server(["10.0.0.1"])
    rig, loop = node(), asyncio.get_running_loop()
    await addresses_of(rig)
    assert rig.look_up_at > loop.time() + 9
    for _ in range(3):
        moved(rig)
        assert rig.look_up_at < loop.time() + 9


async def test_a_name_that_never_had_an_address_is_no_node(
    name_server: Callable[[Answer], NameServer],
) -> None:
    server, rig = name_server(NO_NAME), node()
    for _ in range(2):
        with pytest.raises(socket.gaierror):
            await addresses_of(rig)
    server.answer = ["10.0.0.1"]
    assert await addresses_of(rig) == ("10.0.0.1",)


async def test_look_ups_go_on_without_a_name_server(name_server: Callable[[Answer], NameServer]) -> None:
    rig = FrameNode()
    # The first address takes no connection.
    server = name_server(["127.0.0.9", "127.0.0.1"])
    async with nodes(rig), proxy(f"rig.farm:{rig.port}") as stage:
        await stage.known(1)
        server.answer = NO_NAME
        for number in range(5):
            known = stage.core.directory.nodes[f"rig.farm:{rig.port}"]
            known.look_up_at = 0.0
            known.close_idle()
            assert await stage.ask(b"%d" % number) == b"re:%d" % number
