"""The agents' own door answers as the routes beside it do, and forgets whoever has left."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from control_stage import ScriptedAgent, Stage, gpu_of, stage
from gpupool.control.routes import agent_door
from gpupool.control.routes.agent_door import spread_of
from polling import eventually

REPORTS = "/v1/agent/reports"


@pytest_asyncio.fixture
async def on(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path) as running:
        yield running


async def test_what_is_refused_is_refused_in_the_same_words(on: Stage, tmp_path: Path) -> None:
    agent = ScriptedAgent(on, folder=tmp_path)
    await agent.join()
    old = agent.key.headers(agent.node_id, "POST", REPORTS, b"{}", int(time.time()))
    assert (await agent.send("POST", REPORTS, b"{}", headers=old)).status_code == 400
    wanted = {
        "sent before": (await agent.send("POST", REPORTS, b"{}", headers=old), 401),
        "Clock skew": (await agent.send("POST", REPORTS, b"{}", skew=-1000), 401),
        "not signed": (await agent.send("POST", REPORTS, b"{}", headers={"X-Gpupool-Node": "x"}), 401),
        "report_id": (await agent.send("POST", REPORTS, b"{}"), 400),
        "larger": (await agent.send("POST", REPORTS, b"x" * (5 * 2**20)), 413),
        "nested": (await agent.send("POST", REPORTS, b"[" * 99), 400),
    }
    for words, (reply, status) in wanted.items():
        assert reply.status_code == status, reply.text
        problem = reply.json()
        assert words in problem["detail"]
        assert problem["request_id"] == reply.headers["x-request-id"]
        assert reply.headers["content-type"] == "application/problem+json"


async def test_its_requests_are_counted_under_their_routes(on: Stage, tmp_path: Path) -> None:
    agent = ScriptedAgent(on, folder=tmp_path)
    await agent.join()
    assert (await agent.inventory()).session_known
    async with agent.stream():
        pass
    lines = (await on.client.get("/metrics")).text.splitlines()
    assert any('route="/v1/agent/reports"' in line and 'status="200"' in line for line in lines)


async def test_a_stream_ends_when_its_agent_has_left_and_takes_commands_meanwhile(
    on: Stage, tmp_path: Path
) -> None:
    agent = ScriptedAgent(on, folder=tmp_path)
    await agent.join()
    await agent.inventory(gpu_of("x"))
    assert on.pool.links.is_idle(agent.node_id) is False, "what was new took the other way"
    async with agent.stream() as commands:
        await eventually(lambda: on.pool.links.connected(agent.node_id))
        await on.deploy(gpu_count=1)
        async with asyncio.timeout(20):
            assert (await anext(commands)).kind == "start"
    await eventually(lambda: not on.pool.links.connected(agent.node_id))


async def test_beyond_what_can_be_heard_at_once_only_heartbeats_are(
    on: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent(on, folder=tmp_path)
    await agent.join()
    await agent.inventory()
    monkeypatch.setattr(agent_door, "MOST_AT_ONCE", 0)
    whole = {"report_id": "rep-1", "sent_at": "2026-01-01T00:00:00Z", "session": "s-9", "complete": True}
    for body in (json.dumps(whole), json.dumps(whole, separators=(",", ":"))):
        refused = await agent.send("POST", REPORTS, body.encode())
        assert (refused.status_code, refused.json()["code"]) == (429, "busy")
        assert refused.headers["retry-after"] == "5"
    assert (await agent.report()).session_known


async def test_agents_are_told_how_long_to_spread_their_return(on: Stage, tmp_path: Path) -> None:
    agent = ScriptedAgent(on, folder=tmp_path)
    await agent.join()
    assert (await agent.inventory()).spread_seconds == 0.0
    assert spread_of(10_000) == 4.0


async def test_lists_of_nodes_follow_every_change(on: Stage, tmp_path: Path) -> None:
    agents = [ScriptedAgent(on, name=f"node-{name}", folder=tmp_path) for name in "abc"]
    for agent in agents:
        await agent.join()
        await agent.inventory(gpu_of(agent.name))
    first = await on.get("/v1/nodes", limit=2)
    assert [node["name"] for node in first] == ["node-a", "node-b"]
    rest = await on.get("/v1/nodes", cursor=first[-1]["id"])
    assert [node["name"] for node in rest] == ["node-c"]
    assert [node["gpus"] for node in first] == [{"l4": 1}] * 2
    assert [await on.get(f"/v1/nodes/{node['id']}") for node in first] == first
    assert await on.get("/v1/nodes", gpu="h100") == []
    assert len(await on.get("/v1/nodes", gpu="l4")) == 3
    assert (await on.client.post("/v1/nodes/node-b/lock")).status_code == 200
    await agents[0].inventory(gpu_of("node-a"), gpu_of("node-a", 1))
    shown = await on.get("/v1/nodes")
    assert [(node["locked"], node["devices"]) for node in shown] == [(False, 2), (True, 1), (False, 1)]
    devices = await on.get("/v1/devices", limit=2)
    assert [device["node"] for device in devices] == ["node-a", "node-a"]
    reply = await on.client.get("/v1/nodes", params={"cursor": "node-x"})
    assert reply.status_code == 400
