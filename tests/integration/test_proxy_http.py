"""HTTP lookups through the proxy: forwarded anew, retried elsewhere, judged by their shape; the proxy's own pages."""

import asyncio
import json

import pytest

from gpupool.contracts.problems import Problem
from gpupool.contracts.recompute import RecomputeServerView
from polling import eventually
from proxy_stage import PROOF, QUALITY, FrameNode, HttpNode, ProxyStage, nodes, proxy

QUESTION = json.dumps({"plot_id": "00" * 32, "k": 32, "level": 3, "line_points": ["1"] * 32}).encode()


async def test_a_proof_and_a_quality_come_through() -> None:
    node = HttpNode()
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        status, headers, body = await stage.http("POST", "/v1/proofs", QUESTION, X_Request_Id="my-own.id_7")
        assert (status, json.loads(body), headers["x-request-id"]) == (200, PROOF, "my-own.id_7")
        status, _, body = await stage.http("POST", "/v1/qualities", QUESTION)
        assert (status, json.loads(body)) == (200, QUALITY)
    assert node.seen == [QUESTION, QUESTION]
    assert node.headers[0]["x-request-id"] == "my-own.id_7"


async def test_a_connection_to_a_server_is_kept_for_the_next_request() -> None:
    node = HttpNode()
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        before = node.connections
        for _ in range(5):
            assert (await stage.http("POST", "/v1/proofs", QUESTION))[0] == 200
        assert node.connections == before + 1


async def test_the_deadline_goes_on_smaller_and_the_default_without_one() -> None:
    node = HttpNode()
    async with nodes(node), proxy(node, deadline_seconds=3.0) as stage:
        await stage.known(1)
        await stage.http("POST", "/v1/proofs", QUESTION, X_Deadline_Ms="2000")
        await stage.http("POST", "/v1/proofs", QUESTION)
        status, _, _ = await stage.http("POST", "/v1/proofs", QUESTION, X_Deadline_Ms="soon")
    given = [int(headers["x-deadline-ms"]) for headers in node.headers]
    assert 0 < given[0] <= 2000
    assert 2000 < given[1] <= 3000
    assert status == 400


async def test_an_id_that_could_break_a_log_or_a_head_is_replaced() -> None:
    node = HttpNode()
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        for bad in ("a b", "x" * 65, "(id = fake)"):
            _, headers, _ = await stage.http("POST", "/v1/proofs", QUESTION, X_Request_Id=bad)
            assert headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    "body", [{"proof": ["1"] * 63}, {"proof": [1] * 64}, [], "text", b"{", {"x": ["1", "2"]}, b"[" * 5000]
)
async def test_an_answer_without_the_shape_of_one_is_asked_elsewhere(body: object) -> None:
    wrong, right = HttpNode(), HttpNode()
    wrong.body = body
    async with nodes(wrong, right), proxy(wrong, right) as stage:
        await stage.known(2)
        answers = await asyncio.gather(*(stage.http("POST", "/v1/proofs", QUESTION) for _ in range(8)))
    assert {(status, answer) for status, _, answer in answers} == {(200, json.dumps(PROOF).encode())}


@pytest.mark.parametrize("status", [500, 502, 503, 429, 422, 504])
async def test_a_server_that_will_not_is_asked_elsewhere(status: int) -> None:
    unwilling, willing = HttpNode(), HttpNode()
    unwilling.status = status
    async with nodes(unwilling, willing), proxy(unwilling, willing) as stage:
        await stage.known(2)
        answers = await asyncio.gather(*(stage.http("POST", "/v1/proofs", QUESTION) for _ in range(8)))
    assert {answer[0] for answer in answers} == {200}


async def announced(stage: ProxyStage, length: int) -> int:
    """Return the status of a request whose body was only announced."""
    reader, writer = await stage.connect()
    writer.write(b"POST /v1/proofs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length)
    async with asyncio.timeout(30):
        status = int((await reader.readline()).split()[1])
    writer.transport.abort()
    return status


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_what_every_server_would_say_is_said_at_once(status: int) -> None:
    node = HttpNode()
    node.status, node.body = status, {"code": "as it came"}
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        got = await stage.http("POST", "/v1/proofs", QUESTION)
    assert (got[0], json.loads(got[2])) == (status, {"code": "as it came"})
    assert len(node.seen) == 1


async def test_with_no_answer_the_client_is_told_at_its_deadline() -> None:
    node = HttpNode()
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        node.mode = "hang"
        began = stage.core.clock()
        status, headers, body = await stage.http("POST", "/v1/proofs", QUESTION, X_Deadline_Ms="600")
        assert stage.core.clock() - began >= 0.6
    problem = Problem.model_validate_json(body)
    assert (status, problem.code, headers["content-type"]) == (504, "deadline", "application/problem+json")


async def test_a_client_that_leaves_cancels_the_request() -> None:
    node = HttpNode()
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        node.mode = "hang"
        _, writer = await stage.connect()
        writer.write(b"POST /v1/proofs HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await eventually(lambda: node.seen, 10, "the request reaching the node")
        writer.close()
        await eventually(lambda: not stage.core.http.active, 3, "the request being cancelled")


async def test_requests_on_one_connection_are_answered_in_order() -> None:
    node = HttpNode()
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        one = b"POST /v1/%b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
        received = await stage.exchange(
            one % b"proofs" + one % b"qualities" + b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"
        )
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.index(b'"proof"') < received.index(b'"x"') < received.index(b"instance_id")


async def test_frames_never_go_to_http_nodes_nor_the_reverse() -> None:
    ours, theirs = HttpNode(), FrameNode()
    async with nodes(ours, theirs), proxy(ours, theirs) as stage:
        await stage.known(2)
        await asyncio.gather(*(stage.ask(b"f%d" % number) for number in range(20)))
        answers = await asyncio.gather(*(stage.http("POST", "/v1/proofs", QUESTION) for _ in range(20)))
    assert {answer[0] for answer in answers} == {200}
    assert len(theirs.seen) == 20
    assert ours.seen == [QUESTION] * 20


async def test_without_an_http_node_the_reason_is_told_at_once() -> None:
    node = FrameNode()
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        status, _, body = await stage.http("POST", "/v1/proofs", QUESTION)
    assert status == 503
    assert Problem.model_validate_json(body).code == "unavailable"


async def test_limits_of_a_request() -> None:
    node = HttpNode()
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        assert await announced(stage, 10**9) == await announced(stage, 10**15) == 413
        assert (await stage.http("POST", "/v1/proofs", b"x" * 65537))[0] == 413
        assert (await stage.http("GET", "/healthz", b"", Long="y" * 17000))[0] == 413
        assert b" 400 " in await stage.exchange(b"NOT HTTP AT ALL\r\n\r\n")
        assert (await stage.http("GET", "/nothing"))[0] == 404
        assert (await stage.http("PUT", "/v1/proofs"))[0] == 405
    assert node.seen == []


async def test_what_comes_in_pieces_or_several_at_once_is_answered_in_order() -> None:
    node = HttpNode()
    head = f"POST /v1/proofs HTTP/1.1\r\nHost: x\r\nX-Request-Id: {{}}\r\nContent-Length: {len(QUESTION)}\r\n\r\n"
    asked = b"".join(head.format(f"no-{number}").encode() + QUESTION for number in range(5))
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        for size in (len(asked), 700, len(asked) // 2 + 3):
            reader, writer = await stage.connect()
            for at in range(0, len(asked), size):
                writer.write(asked[at : at + size])
                await writer.drain()
            for number in range(5):
                answered = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(answered.lower().partition("content-length: ")[2].partition("\r\n")[0])
                assert f"X-Request-Id: no-{number}\r\n" in answered
                assert json.loads(await reader.readexactly(length)) == PROOF
            writer.close()
    assert node.seen == [QUESTION] * 15


async def test_a_client_that_asks_first_may_send_its_body() -> None:
    node = HttpNode()
    head = f"POST /v1/proofs HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(QUESTION)}\r\n\r\n"
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        reader, writer = await stage.connect()
        writer.write(head.encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(QUESTION)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


async def test_a_body_without_a_length_is_limited_too() -> None:
    node = HttpNode()
    head = b"POST /v1/proofs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with nodes(node), proxy(node) as stage:
        await stage.known(1)
        whole = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(QUESTION), QUESTION)
        reader, writer = await stage.connect()
        writer.write(whole)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()
        assert b" 413 " in await stage.exchange(
            head + b"8000\r\n" + b"x" * 0x8000 + b"\r\n9000\r\n" + b"x" * 0x9000
        )
    assert node.seen == [QUESTION]


async def test_a_request_slower_than_nearly_all_is_asked_elsewhere_too() -> None:
    quick, late = HttpNode(), HttpNode()
    async with nodes(quick, late), proxy(quick, late) as stage:
        await stage.known(2)
        for _ in range(100):
            assert (await stage.http("POST", "/v1/proofs", QUESTION))[0] == 200
        late.delay = 3.0
        while not stage.core.http.pool.hedges.taken:
            status, _, body = await stage.http("POST", "/v1/proofs", QUESTION)
            assert (status, json.loads(body)) == (200, PROOF)


async def test_the_proxy_tells_about_itself() -> None:
    ours, theirs = HttpNode(), FrameNode()
    async with nodes(ours, theirs), proxy(ours, theirs) as stage:
        await stage.known(2)
        await stage.ask(b"one")
        await stage.http("POST", "/v1/proofs", QUESTION)
        assert json.loads((await stage.http("GET", "/healthz"))[2])["instance_id"] == stage.core.instance_id
        assert (await stage.http("GET", "/readyz"))[0] == 200
        status, headers, body = await stage.http("GET", "/v1/server")
        view = RecomputeServerView.model_validate_json(body)
        assert (status, view.levels, len(view.devices)) == (200, [1, 2], 1)
        assert headers["x-gpupool-proxy"] == stage.core.instance_id
        rows = json.loads((await stage.http("GET", "/v1/nodes"))[2])["nodes"]
        assert {(row["name"], *row["kinds"]) for row in rows} == {
            (ours.address, "http"),
            (theirs.address, "frames"),
        }
        metrics = (await stage.http("GET", "/metrics"))[2].decode()
    assert 'gpupool_proxy_requests_total{kind="frames",result="ok"} 1' in metrics
    assert f'gpupool_proxy_node_up{{node="{ours.address}"}} 1' in metrics


async def test_a_node_that_has_this_proxy_behind_it_is_refused() -> None:
    circle, good = HttpNode(), HttpNode()
    async with nodes(circle, good), proxy(circle, good) as stage:
        circle.proxy_header = f"inst-other,{stage.core.instance_id}"
        await eventually(
            lambda: stage.core.directory.nodes[circle.address].refused, 20, "the circle being noticed"
        )
        answers = await asyncio.gather(*(stage.http("POST", "/v1/proofs", QUESTION) for _ in range(6)))
        status, _, _ = await stage.http(
            "POST", "/v1/proofs", QUESTION, X_Gpupool_Proxy=stage.core.instance_id
        )
    assert {answer[0] for answer in answers} == {200}
    assert status == 508
    assert circle.seen == []


async def test_a_proxy_without_servers_is_told_and_forgotten_once_it_has_one() -> None:
    empty = HttpNode()
    empty.proxy_header, empty.kinds_header = "inst-other", ""
    async with nodes(empty), proxy(empty) as stage:
        node = stage.core.directory.nodes[empty.address]
        await eventually(lambda: node.trouble, 20, "the empty proxy being noticed")
        assert node.trouble == "it is a proxy, and no server behind it answers"
        empty.kinds_header = "http"
        await eventually(lambda: node.trouble is None, 20, "the proxy being of use")


async def test_a_proxy_before_a_proxy_carries_both_protocols() -> None:
    ours, theirs = HttpNode(), FrameNode()
    async with nodes(ours, theirs), proxy(ours, theirs) as inner:
        await inner.known(2)
        async with proxy(f"127.0.0.1:{inner.port}") as outer:
            await eventually(
                lambda: len(next(iter(outer.core.directory.nodes.values())).kinds) == 2, 20, "both kinds"
            )
            assert await outer.ask(b"deep") == b"re:deep"
            assert (await outer.http("POST", "/v1/proofs", QUESTION))[0] == 200
