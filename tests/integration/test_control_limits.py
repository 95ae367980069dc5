"""Limits of control that take more than one request to reach, or a message of an odd form."""

from pathlib import Path

import pytest

from control_stage import ScriptedAgent, stage
from gpupool.control import joining, wanting
from gpupool.core.nesting import MOST_LEVELS

SPEC = {"name": "a", "command": ["serve"], "replicas": 0}


@pytest.mark.parametrize("opening", ["[", '{"spec":', '{"spec":{"command":['])
async def test_a_body_that_is_nested_deep_is_refused_with_the_limit(tmp_path: Path, opening: str) -> None:
    async with stage(tmp_path) as on:
        for times in (MOST_LEVELS + 1, 50_000):
            reply = await on.client.post("/v1/workloads", content=(opening * times).encode())
            assert reply.status_code == 400
            assert f"nested deeper than {MOST_LEVELS} levels" in reply.json()["detail"]
        flat = {"spec": {**SPEC, "command": ["[" * 4000, "{" * 4000]}}
        assert (await on.client.post("/v1/workloads", json=flat)).status_code == 201


async def test_there_are_so_many_workloads_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wanting, "MAX_WORKLOADS", 2)
    async with stage(tmp_path) as on:
        replies = [
            await on.client.post("/v1/workloads", json={"spec": {**SPEC, "name": name}}) for name in "aabc"
        ]
        assert [reply.status_code for reply in replies] == [201, 200, 201, 409]
        assert replies[-1].json()["code"] == "limit_reached"
        assert "2 workloads" in replies[-1].json()["detail"]
        await on.client.delete("/v1/workloads/a")
        again = await on.client.post("/v1/workloads", json={"spec": {**SPEC, "name": "c"}})
        assert again.status_code == 201


async def test_there_are_so_many_nodes_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MAX_NODES", 1)
    async with stage(tmp_path) as on:
        first, second = (ScriptedAgent(on, name, folder=tmp_path) for name in ("first", "second"))
        assert [(await agent.join()).status_code for agent in (first, first)] == [200, 200]
        refused = await second.join()
        assert (refused.status_code, refused.json()["code"]) == (409, "limit_reached")
        assert "1 nodes" in refused.json()["detail"]
