"""Join tokens over real HTTP: minted once, good for so many machines, until a moment, and never shown again."""

import json
import time
from pathlib import Path
from typing import Any

import httpx

from control_stage import ScriptedAgent, Stage, stage
from fleet_samples import NOON
from gpupool.core.clock import FakeClock
from gpupool.core.keys import SigningKey


async def mint(on: Stage, **fields: Any) -> Any:
    reply = await on.client.post("/v1/join-tokens", json=fields)
    assert reply.status_code == 201, reply.text
    return reply.json()


async def join(on: Stage, token: str, name: str, folder: Path, **fields: Any) -> httpx.Response:
    """Join with a key of the name's own."""
    key = SigningKey.load_or_make(folder / f"{name}.key")
    body = {"name": name, "public_key": key.public_text, "address": "10.0.0.7", **fields}
    async with on.anonymous(token) as client:
        return await client.post("/v1/agent/join", json=body)


def refusal(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["detail"]


async def test_a_token_lets_one_machine_join_as_announced(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        minted = await mint(on, name="gpu-1", hourly_usd=1.25, region="de-fra", short_ref="l4")
        assert (minted["usable"], minted["created_by"]) == (True, "operator@127.0.0.1")
        assert minted["token"].startswith("gpj_")
        reply = await join(on, minted["token"], "some-host", tmp_path)
        assert reply.status_code == 200, reply.text
        (node,) = await on.get("/v1/nodes")
        shown = (node["id"], node["name"], node["hourly_usd"], node["region"], node["short_ref"])
        assert shown == (reply.json()["node_id"], "gpu-1", 1.25, "de-fra", "l4")
        status, detail = refusal(await join(on, minted["token"], "other-host", tmp_path))
        assert status == 401
        assert detail == f"The join token {minted['id']} was used already."
        told = [e for e in await on.get("/v1/events") if e["kind"] in {"node.invited", "node.joined"}]
        assert [e["data"]["by"] for e in told] == ["operator@127.0.0.1", minted["id"]]
        listed = await on.client.get("/v1/join-tokens")
        assert [(token["used"], token["usable"]) for token in listed.json()] == [(1, False)]
        assert "token" not in listed.json()[0]
        assert minted["token"] not in listed.text + json.dumps(await on.get("/v1/events"))
        assert minted["token"].encode() not in (tmp_path / "home" / "data" / "pool.db").read_bytes()


async def test_a_token_for_many_counts_and_lets_each_bring_its_name(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        minted = await mint(on, uses=2, region="us")
        for name in ("rack-1", "rack-1", "rack-2"):
            assert (await join(on, minted["token"], name, tmp_path)).status_code == 200
        status, detail = refusal(await join(on, minted["token"], "rack-3", tmp_path))
        assert (status, detail) == (401, f"The join token {minted['id']} is used up.")
        assert [node["name"] for node in await on.get("/v1/nodes", region="us")] == ["rack-1", "rack-2"]


async def test_a_token_ends_by_time_by_revoking_and_by_a_newer_one(tmp_path: Path) -> None:
    clock = FakeClock(NOON)
    async with stage(tmp_path, clock) as on:
        late, revoked, replaced = (
            await mint(on, valid_hours=0.5),
            await mint(on, uses=3),
            await mint(on, name="gpu-1"),
        )
        assert (await on.client.delete(f"/v1/join-tokens/{revoked['id']}")).status_code == 204
        newest = await mint(on, name="gpu-1")
        clock.advance(1800)
        for token, why in (
            (late, "expired at 2026-03-01 12:30 UTC"),
            (revoked, "was revoked"),
            (replaced, "was revoked"),
        ):
            status, detail = refusal(await join(on, token["token"], "gpu-1", tmp_path))
            assert (status, detail) == (401, f"The join token {token['id']} {why}.")
        assert (await join(on, newest["token"], "gpu-1", tmp_path)).status_code == 200
        assert (await on.client.delete("/v1/join-tokens/jt-none")).status_code == 404
        clock.advance(8 * 24 * 3600)
        await mint(on)
        assert len(await on.get("/v1/join-tokens")) == 1


async def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        taken = await on.client.post("/v1/join-tokens", json={"name": "node-a"})
        assert refusal(taken) == (409, "A node node-a is in the pool already.")
        assert "gpupool node remove node-a" in taken.json()["remedy"]
        for wrong, words in (
            ({"short_ref": "a1000"}, "a1000"),
            ({"name": "x", "uses": 2}, "worth one join"),
            ({"region": "No Such"}, "region"),
            ({"valid_hours": 0}, "valid_hours"),
            ({"colour": "red"}, "colour"),
        ):
            status, detail = refusal(await on.client.post("/v1/join-tokens", json=wrong))
            assert (status, words in detail) == (400, True), detail
        for token in ("gpj_wrong", on.tokens.service, on.tokens.operator):
            assert refusal(await join(on, token, "x", tmp_path))[0] == 401


async def test_a_node_joins_again_by_its_key_alone_and_for_itself_only(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agents = [ScriptedAgent(on, name, folder=tmp_path) for name in ("node-a", "node-b")]
        for agent in agents:
            await agent.join()

        async def again(signer: ScriptedAgent, of: ScriptedAgent, address: str) -> httpx.Response:
            wanted = {"name": of.name, "public_key": of.key.public_text, "address": address}
            body = json.dumps(wanted).encode()
            signed = signer.key.headers(signer.node_id, "POST", "/v1/agent/join", body, int(time.time()))
            headers = {**signed, "Content-Type": "application/json"}
            async with on.anonymous() as client:
                return await client.post("/v1/agent/join", content=body, headers=headers)

        moved = await again(agents[0], agents[0], "10.9.9.9")
        assert moved.json() == {"node_id": agents[0].node_id}
        assert (await on.get("/v1/nodes/node-a"))["address"] == "10.9.9.9"
        status, detail = refusal(await again(agents[0], agents[1], "10.6.6.6"))
        assert (status, detail) == (401, "A node joins again under its own key only.")
        async with on.anonymous() as client:
            reply = await client.post("/v1/agent/join", json={"name": "x"})
        assert refusal(reply) == (401, "The request carries no join token.")
        assert (await on.client.delete("/v1/nodes/node-a")).status_code == 204
        status, detail = refusal(await again(agents[0], agents[0], "10.9.9.9"))
        assert (status, "was removed from the pool" in detail) == (403, True)


async def test_nodes_are_filtered_and_changed_by_who_asks(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        for name in ("node-a", "node-b"):
            agent = ScriptedAgent(on, name, folder=tmp_path)
            await agent.join()
            await agent.inventory()
        reply = await on.client.patch("/v1/nodes/node-b", json={"region": "us", "hourly_usd": 2})
        assert (reply.json()["region"], reply.json()["hourly_usd"]) == ("us", 2.0)
        assert [node["name"] for node in await on.get("/v1/nodes", region="us", state="ready")] == ["node-b"]
        assert await on.get("/v1/nodes", gpu="l4") == []
        assert (await on.client.get("/v1/nodes", params={"state": "broken"})).status_code == 400
        await on.client.post("/v1/nodes/node-b/lock")
        await on.client.post("/v1/nodes/node-b/drain")
        assert (await on.get("/v1/nodes/node-b"))["draining"] is True
        assert (await on.get("/v1/nodes/node-b/drain")) == {"node": "node-b", "draining": True, "left": []}
        await on.client.post("/v1/nodes/node-b/undrain")
        for method, path in (
            ("GET", "/v1/nodes/none/drain"),
            ("POST", "/v1/nodes/none/drain"),
            ("DELETE", "/v1/nodes/none"),
            ("PATCH", "/v1/nodes/none"),
        ):
            assert (await on.client.request(method, path, json={})).status_code == 404
        kinds = ("node.changed", "node.locked", "node.draining", "node.drained", "node.undrained")
        told = [e for e in await on.get("/v1/events") if e["kind"] in kinds]
        assert {e["data"]["by"] for e in told} == {"operator@127.0.0.1"}
        assert len(told) == 5
