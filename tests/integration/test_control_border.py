"""What control refuses, over real HTTP: credentials, signatures, sizes and shapes; every refusal is a problem."""

import asyncio
import json
import time
from pathlib import Path

import httpx
import pytest

from control_stage import ScriptedAgent, stage
from gpupool.contracts.problems import MEDIA_TYPE, Problem
from gpupool.control.serving import BoundedHead
from gpupool.core.errors import StorageError
from gpupool.core.keys import HEADER_NODE, HEADER_NONCE, HEADER_SIGNATURE, HEADER_TIME

SIGNATURE = (HEADER_NODE, HEADER_TIME, HEADER_NONCE, HEADER_SIGNATURE)
EMPTY_REPORT = b'{"report_id":"rep-1","sent_at":"2026-01-01T00:00:00Z","session":"s-1"}'


def problem(reply: httpx.Response, status: int, code: str) -> Problem:
    """Return the problem that a refusal must carry."""
    assert (reply.status_code, reply.headers["content-type"]) == (status, MEDIA_TYPE), reply.text
    found = Problem.model_validate_json(reply.content)
    assert (found.status, found.code, found.request_id) == (status, code, reply.headers["x-request-id"])
    assert found.detail
    assert found.remedy
    return found


@pytest.mark.parametrize("token", [None, "wrong", "größer"])
async def test_the_api_takes_the_operator_token_only(tmp_path: Path, token: str | None) -> None:
    async with stage(tmp_path) as on, on.anonymous() as client:
        headers = [(b"authorization", f"Bearer {token}".encode("latin-1"))] if token else []
        for path in ("/v1/nodes", "/v1/endpoints", "/v1/nothing", "/v1"):
            reply = await client.get(path, headers=headers)
            problem(reply, 401, "unauthorized")
            assert reply.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/healthz")).json()["instance_id"] == on.pool.instance_id
        assert (await client.get("/readyz")).status_code == 200
        assert "gpupool_nodes" in (await client.get("/metrics")).text


async def test_the_service_token_reads_the_feed_and_nothing_else(tmp_path: Path) -> None:
    async with stage(tmp_path) as on, on.anonymous(on.tokens.service) as client:
        assert (await client.get("/v1/endpoints")).status_code == 200
        problem(await client.get("/v1/nodes"), 403, "forbidden")
        problem(await client.post("/v1/endpoints"), 403, "forbidden")


async def test_joining_takes_the_join_token_only(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        body = {"name": "node-a", "public_key": agent.key.public_text, "address": "127.0.0.1"}
        problem(await on.client.post("/v1/agent/join", json=body), 401, "unauthorized")
        assert (await on.get("/v1/nodes")) == []


async def test_the_same_key_is_the_same_node_and_a_taken_name_is_refused(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        first = ScriptedAgent(on, folder=tmp_path)
        await first.join()
        again = ScriptedAgent(on, name="renamed", key=first.key)
        assert (await again.join()).json()["node_id"] == first.node_id
        assert [node["name"] for node in await on.get("/v1/nodes")] == ["renamed"]
        thief = ScriptedAgent(on, name="thief", folder=tmp_path)
        thief.name = "renamed"
        refused = problem(await thief.join(), 409, "conflict")
        assert "another node" in refused.detail
        assert "key file" in refused.remedy


async def test_a_signature_must_fit_the_request_and_the_key(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent, other = (ScriptedAgent(on, name=name, folder=tmp_path) for name in ("node-a", "node-b"))
        await agent.join()
        target, now = "/v1/agent/reports", int(time.time())
        sound = agent.key.headers(agent.node_id, "POST", target, EMPTY_REPORT, now)
        foreign = other.key.headers(agent.node_id, "POST", target, EMPTY_REPORT, now)
        unknown = other.key.headers("node-nobody", "POST", target, EMPTY_REPORT, now)
        for headers, body in ((foreign, EMPTY_REPORT), (unknown, EMPTY_REPORT), (sound, b"{}"), ({}, b"{}")):
            reply = await agent.send("POST", target, body, headers={**headers, "X-Nothing": "1"})
            problem(reply, 401, "unauthorized")
        assert (await agent.send("POST", target, EMPTY_REPORT, headers=sound)).status_code == 200


async def test_a_request_is_taken_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        target = "/v1/agent/reports"
        headers = agent.key.headers(agent.node_id, "POST", target, EMPTY_REPORT, int(time.time()))
        assert (await agent.send("POST", target, EMPTY_REPORT, headers=headers)).status_code == 200
        replayed = await agent.send("POST", target, EMPTY_REPORT, headers=headers)
        assert "sent before" in problem(replayed, 401, "unauthorized").detail


@pytest.mark.parametrize("skew", [-400, 400])
async def test_a_clock_that_is_off_is_named(tmp_path: Path, skew: int) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        reply = await agent.send("POST", "/v1/agent/reports", EMPTY_REPORT, skew=skew)
        refused = problem(reply, 401, "unauthorized")
        assert "Clock skew" in refused.detail
        assert "NTP" in refused.remedy


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"spec": 3}',
        b'{"spec": {"name": "UPPER"}}',
        b"\xff",
        b'{"spec": {}} x',
        b'{"spec": {"name": "a", "command": ["x"], "colour": "red"}}',
    ],
)
async def test_malformed_bodies_are_named_and_change_nothing(tmp_path: Path, body: bytes) -> None:
    async with stage(tmp_path) as on:
        reply = await on.client.post(
            "/v1/workloads", content=body, headers={"Content-Type": "application/json"}
        )
        problem(reply, 400, "invalid_input")
        assert (await on.get("/v1/workloads")) == []


async def test_a_malformed_report_changes_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        for body in (b"", b"{", b"[]", b'{"report_id": "../x", "sent_at": 1, "session": ""}'):
            problem(await agent.send("POST", "/v1/agent/reports", body), 400, "invalid_input")
        assert [node["state"] for node in await on.get("/v1/nodes")] == ["joining"]


async def test_an_unknown_gpu_model_is_refused_with_near_names(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        spec = {"name": "a", "command": ["x"], "gpu_count": 1, "include": ["a100_40"]}
        refused = problem(await on.client.post("/v1/workloads", json={"spec": spec}), 400, "invalid_input")
        assert "a100_40gb" in refused.detail


async def test_paths_and_methods_that_are_not_there(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        problem(await on.client.get("/v1/nothing"), 404, "not_found")
        problem(await on.client.get("/nothing"), 404, "not_found")
        for path in ("/v1/nodes/x", "/v1/workloads/x", "/v1/placements/x", "/v1/workloads/x/why"):
            problem(await on.client.get(path), 404, "not_found")
        wrong = await on.client.put("/v1/nodes")
        problem(wrong, 405, "method_not_allowed")
        assert wrong.headers["allow"] == "GET"
        problem(await on.client.get("/v1/events", params={"after": -1, "limit": 0}), 400, "invalid_input")


@pytest.mark.parametrize(("path", "limit"), [("/v1/workloads", 2**20), ("/v1/agent/reports", 4 * 2**20)])
async def test_a_body_beyond_the_limit_is_refused_however_it_comes(
    tmp_path: Path, path: str, limit: int
) -> None:
    async with stage(tmp_path) as on:
        signed = dict.fromkeys(SIGNATURE, "x")
        sent = await on.client.post(path, content=b"x" * (limit + 1), headers=signed)
        problem(sent, 413, "too_large")
        host, port = on.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {on.tokens.operator}\r\n"
        head += "".join(f"{name}: x\r\n" for name in SIGNATURE)
        writer.write(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        sending = asyncio.create_task(_trickle(writer))
        async with asyncio.timeout(30):
            status = await reader.readline()
        sending.cancel()
        await asyncio.wait({sending})
        writer.close()
        assert status.split()[1] == b"413"


async def _trickle(writer: asyncio.StreamWriter) -> None:
    """Send a chunked body without end."""
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    while not writer.is_closing():
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)


async def test_heads_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        many = [(f"x-{number}", "1") for number in range(200)]
        problem(await on.client.get("/healthz", headers=many), 431, "too_large")
        problem(await on.client.get("/healthz", headers={"x-long": "y" * 40_000}), 431, "too_large")
        host, port = on.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /healthz HTTP/1.1\r\nX-Endless: " + b"y" * 200_000)
        async with asyncio.timeout(30):
            assert (await reader.readline()).split()[1] == b"400"
        writer.close()


async def test_a_connection_that_says_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHead, "head_seconds", 0.2)
    async with stage(tmp_path) as on:
        host, port = on.url.removeprefix("http://").split(":")
        for beginning in (b"", b"GET /healthz HTTP/1.1\r\nHost"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(beginning)
            async with asyncio.timeout(30):
                assert await reader.read() == b""
            writer.close()
        assert (await on.client.get("/healthz")).status_code == 200


async def test_an_unsigned_body_is_not_read(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        host, port = on.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/agent/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n")
        async with asyncio.timeout(30):
            assert (await reader.readline()).split()[1] == b"401"
        writer.close()


async def test_a_request_id_is_kept_where_it_is_sound(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        kept = await on.client.get("/healthz", headers={"X-Request-Id": "mine-1"})
        made = await on.client.get("/healthz", headers={"X-Request-Id": "not sound"})
        assert kept.headers["x-request-id"] == "mine-1"
        assert made.headers["x-request-id"].startswith("req-")
        listed = [await on.client.get("/v1/nodes", headers={"X-Request-Id": f"mine-{n}"}) for n in (1, 2)]
        assert [reply.headers.get_list("x-request-id") for reply in listed] == [["mine-1"], ["mine-2"]]


async def test_a_fault_of_ours_tells_the_caller_only_its_request_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path) as on:

        def crash() -> None:
            raise ZeroDivisionError("secret detail")

        def no_disk() -> None:
            raise StorageError("The disk is full.")

        monkeypatch.setattr(on.pool.store, "read", crash)
        reply = await on.client.get("/readyz", headers={"X-Request-Id": "mine-1"})
        refused = problem(reply, 500, "internal")
        assert "secret" not in reply.text
        assert "mine-1" in refused.remedy
        monkeypatch.setattr(on.pool.store, "read", no_disk)
        problem(await on.client.get("/readyz"), 500, "storage")


async def test_the_api_describes_itself(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        document = await on.get("/openapi.json")
        operations = [op for path in document["paths"].values() for op in path.values()]
        names = [op["operationId"] for op in operations]
        assert len(set(names)) == len(names)
        assert {"list_nodes", "deploy", "follow_endpoints", "report"} <= set(names)
        assert all(op["tags"] and op["responses"]["default"]["content"][MEDIA_TYPE] for op in operations)
        assert not any("422" in op["responses"] for op in operations)
        body = document["paths"]["/v1/agent/reports"]["post"]["requestBody"]["content"]
        reference = body["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
        assert "acknowledged" in document["components"]["schemas"][reference]["properties"]
        text = json.dumps(document)
        named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
        assert named <= set(document["components"]["schemas"])
