"""Who did what: every route that changes something writes an event with whoever asked, and both commands show it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from fastapi.routing import APIRoute
from typer.testing import CliRunner

from chutes_cli import ADDRESS
from control_stage import ScriptedAgent, Stage, cpu_of, gpu_of, stage
from gpupool.cli.main import app
from gpupool.control.routes import (
    alerts,
    hotkeys,
    join_tokens,
    miner,
    nodes,
    placements,
    purges,
    tokens,
    workloads,
)
from gpupool.fleet.placements import PlacementState

ROUTERS = (alerts, hotkeys, join_tokens, miner, nodes, placements, purges, tokens, workloads)
CHANGING_GETS = {"/servers/{server}/lock", "/servers/{server}/unlock"}
NOT_KEPT = {("POST", "/v1/alerts/test")}
"""What changes nothing of the pool: it sends a message."""
SPEC = {"name": "demo", "command": ["serve", "{port}"], "gpu_count": 1}
SERVER = {"name": "n", "validator": ADDRESS, "hourly_cost": 1, "gpu_short_ref": "l4"}
STEPS: list[tuple[str, str, str, Any]] = [
    ("POST", "/v1/tokens", "/v1/tokens", {"name": "bob", "role": "viewer"}),
    ("DELETE", "/v1/tokens/{token}", "/v1/tokens/bob", None),
    ("POST", "/v1/hotkeys", "/v1/hotkeys", {"address": ADDRESS, "name": "carol"}),
    ("DELETE", "/v1/hotkeys/{hotkey}", "/v1/hotkeys/carol", None),
    ("POST", "/v1/join-tokens", "/v1/join-tokens", {}),
    ("DELETE", "/v1/join-tokens/{token}", "/v1/join-tokens/TOKEN", None),
    ("POST", "/v1/silences", "/v1/silences", {"pattern": "*", "seconds": 60, "why": "work", "by": "alice"}),
    ("DELETE", "/v1/silences/{silence_id}", "/v1/silences/SILENCE", None),
    ("PATCH", "/v1/nodes/{node}", "/v1/nodes/n", {"region": "de-fra"}),
    ("POST", "/v1/nodes/{node}/lock", "/v1/nodes/n/lock", None),
    ("POST", "/v1/nodes/{node}/unlock", "/v1/nodes/n/unlock", None),
    ("POST", "/v1/nodes/{node}/drain", "/v1/nodes/n/drain", None),
    ("POST", "/v1/nodes/{node}/undrain", "/v1/nodes/n/undrain", None),
    ("GET", "/servers/{server}/lock", "/servers/n/lock", None),
    ("GET", "/servers/{server}/unlock", "/servers/n/unlock", None),
    ("POST", "/servers/", "/servers/", SERVER),
    ("POST", "/v1/workloads", "/v1/workloads", {"spec": SPEC}),
    ("POST", "/v1/purges", "/v1/purges", {"everything": True}),
    ("DELETE", "/deployments/purge", "/deployments/purge", None),
    ("DELETE", "/deployments/{deployment}", "/deployments/PLACEMENT", None),
    ("DELETE", "/servers/{server}/deployments", "/servers/n/deployments", None),
    ("POST", "/v1/workloads/{workload}/scale", "/v1/workloads/demo/scale", {"wanted": 2}),
    ("DELETE", "/v1/workloads/{workload}", "/v1/workloads/demo", None),
    ("DELETE", "/servers/{server}", "/servers/n", None),
    ("DELETE", "/v1/nodes/{node}", "/v1/nodes/m", None),
]


def changing_routes() -> set[tuple[str, str]]:
    """Return method and path of every route by which people change something."""
    found = set()
    for module in ROUTERS:
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            for method in route.methods or ():
                if route.include_in_schema and (method != "GET" or route.path in CHANGING_GETS):
                    found.add((method, route.path))
    return found


def test_every_changing_route_is_tried_here() -> None:
    assert changing_routes() == {(method, route) for method, route, _, _ in STEPS} | NOT_KEPT


class Walk:
    """Takes the steps, one after another, under the name alice."""

    def __init__(self, on: Stage, client: httpx.AsyncClient, agent: ScriptedAgent) -> None:
        self.on, self.client, self.agent = on, client, agent
        self.ids: dict[str, str] = {}
        """What to put for words in capitals."""

    async def take(self, method: str, path: str, body: Any) -> list[dict[str, Any]]:
        """Take one step and return the events of alice's that it has left."""
        if "PLACEMENT" in path or path == "/v1/purges" or path.endswith(("/purge", "/deployments")):
            await self._active()
        for word, value in self.ids.items():
            path = path.replace(word, value)
        before = await self.on.get("/v1/events", by="alice", limit=1000)
        reply = await self.client.request(method, path, json=body)
        assert reply.is_success, (method, path, reply.text)
        if path in {"/v1/join-tokens", "/v1/silences"}:
            self.ids["TOKEN" if "token" in path else "SILENCE"] = reply.json()["id"]
        found: list[dict[str, Any]] = await self.on.get("/v1/events", by="alice", limit=1000)
        return found[len(before) :]

    async def _active(self) -> None:
        """Let there be one active deployment, and end the one before."""
        if "PLACEMENT" in self.ids:
            await self.agent.say(self.ids["PLACEMENT"], PlacementState.ENDED)
        found = await self.on.until("/v1/placements", _planned)
        self.ids["PLACEMENT"] = _planned(found)[0]
        await self.agent.say(self.ids["PLACEMENT"], PlacementState.ACTIVE, port=31000)


async def test_every_change_is_an_event_of_whoever_asked_for_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        wish = {"name": "alice", "role": "admin"}
        token = (await on.client.post("/v1/tokens", json=wish)).json()["token"]
        agent = await _joined(on, "n", tmp_path)
        await _joined(on, "m", tmp_path)
        async with on.anonymous(token) as client:
            walk = Walk(on, client, agent)
            for method, route, path, body in STEPS:
                events = await walk.take(method, path, body)
                assert {event["data"]["by"] for event in events} == {"alice@127.0.0.1"}, (method, route)


async def test_both_commands_show_who_asked(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        for name in ("bob", "bob2"):
            assert (await on.client.post("/v1/join-tokens", json={"name": name})).status_code == 201
        wish = {"name": "bob", "role": "operator"}
        token = (await on.client.post("/v1/tokens", json=wish)).json()["token"]
        async with on.anonymous(token) as client:
            for name in ("gpu-1", "gpu-2"):
                assert (await client.post("/v1/join-tokens", json={"name": name})).status_code == 201

        async def said(*words: str) -> str:
            env = {"GPUPOOL_CONTROL_URL": on.url, "GPUPOOL_TOKEN": token}
            told = await asyncio.to_thread(lambda: CliRunner().invoke(app, words, env=env))
            assert told.exit_code == 0, (told.output, told.exception)
            return told.stdout

        everything = json.loads(await said("audit", "--json"))
        assert [event["kind"] for event in everything][-3:] == ["token.made", *["node.invited"] * 2]
        newest = json.loads(await said("audit", "--by", "bob", "--limit", "1", "--json"))
        assert [event["data"]["node"] for event in newest] == ["gpu-2"]
        assert json.loads(await said("audit", "--by", "nobody", "--json")) == []
        table = await said("audit", "--by", "operator")
        assert "operator@127.0.0.1" in table
        assert "gpu-1" not in table
        lines = [json.loads(line) for line in (await said("events", "--by", "bob", "--json")).splitlines()]
        assert [line["data"]["node"] for line in lines] == ["gpu-1", "gpu-2"]
        after = str(lines[0]["seq"])
        assert "gpu-1" not in await said("events", "--by", "bob", "--after", after)
        waiting = asyncio.create_task(on.get("/v1/events", by="carol", wait=20))
        await on.client.post("/v1/join-tokens", json={})
        wish = {"name": "carol", "role": "operator"}
        carol = (await on.client.post("/v1/tokens", json=wish)).json()["token"]
        async with on.anonymous(carol) as client:
            assert (await client.post("/v1/join-tokens", json={})).status_code == 201
        assert [event["data"]["by"] for event in await waiting] == ["carol@127.0.0.1"]


def _planned(found: list[dict[str, Any]]) -> list[str]:
    return [placement["id"] for placement in found if placement["state"] == "planned"]


async def _joined(on: Stage, name: str, folder: Path) -> ScriptedAgent:
    agent = ScriptedAgent(on, name, folder=folder)
    await agent.join()
    await agent.inventory(cpu_of(name), *([gpu_of(name)] if name == "n" else []))
    return agent
