"""Nodes fail in every way they can, under load; while a good one lives, no client notices."""

import asyncio
import errno
import json

import pytest

from gpupool.balancing import NodeState
from gpupool.recompute.proxy import connecting
from gpupool.recompute.proxy.nodes import Node as ProxyNode
from polling import eventually
from proxy_stage import FrameNode, HttpNode, Node, ProxyStage, nodes, proxy

FAULTS = ["close", "reset", "hang", "garbage", "partial", "killed", "slow"]
QUESTION = json.dumps({"level": 3}).encode()


async def load(stage: ProxyStage, kind: str, clients: int, each: int) -> list[str]:
    """Let clients ask one after another; return what went wrong."""
    faults: list[str] = []

    async def client(number: int) -> None:
        for turn in range(each):
            try:
                if kind == "frames":
                    payload = b"%d/%d" % (number, turn)
                    if await stage.ask(payload) != b"re:" + payload:
                        faults.append("wrong answer")
                else:
                    status, _, _ = await stage.http("POST", "/v1/proofs", QUESTION, X_Deadline_Ms="4500")
                    if status != 200:
                        faults.append(f"status {status}")
            except (OSError, asyncio.IncompleteReadError, IndexError) as error:
                faults.append(repr(error))

    await asyncio.gather(*(client(number) for number in range(clients)))
    return faults


async def spoil(node: Node, fault: str) -> None:
    if fault == "killed":
        await node.stop()
    elif fault == "slow":
        node.delay = 1.0
    else:
        node.mode = fault


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["frames", "http"])
async def test_no_request_fails_while_one_node_is_good(kind: str, fault: str) -> None:
    make = FrameNode if kind == "frames" else HttpNode
    good, bad = make(), make()
    good.delay = bad.delay = 0.004
    async with nodes(good, bad), proxy(good, bad) as stage:
        await stage.known(2)
        assert await load(stage, kind, 8, 10) == []
        assert len(bad.seen) > 0
        running = asyncio.create_task(load(stage, kind, 8, 40))
        before = len(good.seen)
        await eventually(lambda: len(good.seen) > before + 5, 20, "the load")
        await spoil(bad, "killed" if fault == "partial" and kind == "http" else fault)
        assert await running == []


@pytest.mark.parametrize("fault", ["hang", "killed", "reset"])
async def test_a_node_that_comes_back_takes_traffic_again(fault: str) -> None:
    good, bad = FrameNode(), FrameNode()
    good.delay = bad.delay = 0.004
    async with nodes(good, bad), proxy(good, bad) as stage:
        await stage.known(2)
        await load(stage, "frames", 8, 10)
        await spoil(bad, fault)

        def state() -> NodeState:
            views = stage.core.frames.pool.view(stage.core.clock())
            return next(view.state for view in views if view.name == bad.address)

        async def loaded_until_out() -> bool:
            assert await load(stage, "frames", 8, 5) == []
            return state() is NodeState.EJECTED

        await eventually(loaded_until_out, 40, "the node being taken out")
        bad.mode = "ok"
        if fault == "killed":
            await bad.start()
        bad.seen.clear()

        async def loaded_until_back() -> bool:
            assert await load(stage, "frames", 8, 5) == []
            return len(bad.seen) > 10

        await eventually(loaded_until_back, 30, "the node being used again")


async def test_with_no_good_node_the_client_is_told_at_the_deadline_and_not_before() -> None:
    bad = FrameNode()
    bad.mode = "close"
    async with nodes(bad), proxy(bad, deadline_seconds=1.0) as stage:
        await stage.known(1)
        began = stage.core.clock()
        assert await load(stage, "frames", 4, 1) != []
        assert stage.core.clock() - began >= 1.0


async def test_a_node_that_comes_back_within_the_deadline_still_serves_those_that_wait() -> None:
    node = FrameNode()
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        await node.stop()
        waiting = asyncio.create_task(load(stage, "frames", 4, 1))
        await eventually(lambda: len(stage.core.frames.active) == 4, 5, "the requests waiting")
        await node.start()
        assert await waiting == []


async def test_a_request_on_which_every_node_chokes_takes_none_of_them_out() -> None:
    poison = b"poison"

    def answer(request: bytes) -> bytes:
        if request[4:] == poison:
            raise ConnectionResetError
        return request[:4] + request[4:][::-1]

    pair = [FrameNode(answer), FrameNode(answer)]
    async with nodes(*pair), proxy(*pair, deadline_seconds=0.7) as stage:
        await stage.known(2)
        await asyncio.gather(*(stage.exchange(b"\x06\0\0\0" + poison) for _ in range(10)))
        states = {view.state for view in stage.core.frames.pool.view(stage.core.clock())}
        assert NodeState.EJECTED not in states
        assert await stage.ask(b"abc") == b"cba"


async def test_nodes_that_pass_probes_and_fail_requests_are_paid_from_the_budget() -> None:
    """Most nodes fail every request at once: nobody is lost, and the good node gets each request once."""
    bad, good = [HttpNode() for _ in range(6)], HttpNode()
    for node in bad:
        node.status = 500
    async with nodes(*bad, good), proxy(*bad, good) as stage:
        await stage.known(7)
        assert await load(stage, "http", 16, 20) == []
        policy = stage.core.http.pool.policy
    assert len(good.seen) == 320
    allowed = policy.retry_budget_ratio * 320 + policy.retry_floor_per_s * 60
    assert sum(len(node.seen) for node in bad) <= 320 + allowed


@pytest.mark.parametrize("kind", [FrameNode, HttpNode])
async def test_nodes_are_not_blamed_where_the_proxy_itself_is_out_of_files(
    kind: type[FrameNode | HttpNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, short = kind(), 0
    reach = connecting._reach

    async def out_of_files(node: ProxyNode, protocol: asyncio.BaseProtocol) -> None:
        nonlocal short
        if short:
            short -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        await reach(node, protocol)

    monkeypatch.setattr(connecting, "_reach", out_of_files)
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        known = stage.core.directory.nodes[node.address]
        for _ in range(5):
            short = 2
            known.close_idle()
            if kind is FrameNode:
                assert await stage.ask(b"x") == b"re:x"
            else:
                assert (await stage.http("POST", "/v1/proofs", b"{}"))[0] == 200
        assert (known.failed, known.trouble) == (0, None)
