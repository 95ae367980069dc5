"""Control over real HTTP: a pool's life with one scripted agent, from joining to the feed and back."""

import asyncio
from pathlib import Path

import pytest

from control_stage import ScriptedAgent, Stage, cpu_of, gpu_of, stage
from gpupool.core.ids import new_id
from gpupool.fleet.placements import PlacementState
from polling import eventually


async def placed(on: Stage, agent: ScriptedAgent, name: str = "demo") -> str:
    """Deploy on the agent's node and bring the placement to active; return its id."""
    await on.deploy(name)
    start = await agent.next_command("start")
    placement = str(start.payload["placement_id"])
    await agent.report(acknowledged=start.seq)
    await agent.say(placement, PlacementState.ACTIVE, port=30001)
    return placement


async def test_a_deployed_chute_is_started_reported_active_and_found_in_the_feed(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        assert (await agent.join()).status_code == 200
        reply = await on.deploy()
        assert (reply["created"], reply["workload"]["version"]) == (True, 1)
        assert "joining" in await on.why()
        await agent.inventory()
        start = await agent.next_command("start")
        placement = start.payload["placement_id"]
        assert start.payload["command"] == ["serve", "{port}"]
        assert start.payload["device_ids"] == []
        device = (await on.get("/v1/devices"))[0]
        assert device["free_mib"] == device["memory_mib"] - 1024
        await agent.report(acknowledged=start.seq)
        feed = await on.get("/v1/endpoints", protocol="openai")
        assert (feed["workloads"][0]["state"], feed["endpoints"]) == ("starting", [])
        await agent.say(placement, PlacementState.ACTIVE, port=30001)
        feed = await on.get("/v1/endpoints", protocol="openai", after=feed["revision"], wait=20)
        assert feed["complete"] is True
        assert [(end["address"], end["models"], end["health"]) for end in feed["endpoints"]] == [
            ("127.0.0.1:30001", ["demo-model"], "ok")
        ]
        kinds = [event["kind"] for event in await on.get("/v1/events")]
        steps = ["placement.planned", "placement.starting", "placement.verifying", "placement.active"]
        assert [kind for kind in kinds if kind in steps] == steps
        shown = await on.get("/v1/workloads/demo")
        assert (shown["active"], shown["why"]) == (1, None)


async def test_a_deleted_chute_is_stopped_and_gives_its_memory_back(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        placement = await placed(on, agent)
        assert (await on.client.delete("/v1/workloads/demo")).status_code == 204
        stop = await agent.next_command("stop", after=1)
        assert stop.payload["placement_id"] == placement
        draining = await on.get("/v1/endpoints")
        assert [end["state"] for end in draining["endpoints"]] == ["draining"]
        await agent.say(placement, PlacementState.ENDED)
        assert (await on.get("/v1/placements", live=True)) == []
        assert [device["claims"] for device in await on.get("/v1/devices")] == [[]]
        assert (await on.client.get("/v1/workloads/demo")).status_code == 404
        assert (await on.get("/v1/endpoints"))["workloads"] == []


async def test_a_placement_missing_from_a_complete_report_is_lost_and_planned_anew(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        placement = await placed(on, agent)
        agent.placements.clear()
        agent.session = new_id("rep")
        await agent.inventory()
        lost = await on.get(f"/v1/placements/{placement}")
        assert (lost["state"], lost["reason"]) == ("failed", "lost")
        again = await agent.next_command("start", after=1)
        assert again.payload["placement_id"] != placement


async def test_an_order_that_is_still_under_way_is_not_lost(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        await on.deploy()
        start = await agent.next_command("start")
        agent.session = new_id("rep")
        await agent.inventory()
        shown = await on.get(f"/v1/placements/{start.payload['placement_id']}")
        assert shown["state"] == "planned"


async def test_a_restarted_control_hands_out_nothing_until_the_inventory_has_come(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        placement = await placed(on, agent)
        revision = (await on.get("/v1/endpoints"))["revision"]
    async with stage(tmp_path) as on:
        agent.on = on
        feed = await on.get("/v1/endpoints")
        assert (feed["complete"], feed["endpoints"]) == (False, [])
        assert feed["revision"] > revision
        assert [node["state"] for node in await on.get("/v1/nodes")] == ["unreachable"]
        assert (await agent.report()).session_known is False
        assert (await on.get("/v1/endpoints"))["endpoints"] == []
        agent.session = new_id("rep")
        assert (await agent.inventory()).session_known is True
        feed = await on.get("/v1/endpoints")
        assert feed["complete"] is True
        assert [end["placement"] for end in feed["endpoints"]] == [placement]


async def test_an_orderly_stop_of_the_agent_ends_placements_and_keeps_what_is_wanted(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        placement = await placed(on, agent)
        await agent.report(leaving=True)
        assert (await on.get(f"/v1/placements/{placement}"))["state"] == "ended"
        assert (await on.get("/v1/nodes/node-a"))["state"] == "unreachable"
        assert (await on.get("/v1/workloads/demo"))["wanted"] == 1
        agent.placements.clear()
        agent.session = new_id("rep")
        await agent.inventory()
        assert (await agent.next_command("start", after=1)).payload["workload_name"] == "demo"


async def test_a_placement_nobody_knows_is_ordered_to_stop_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        for _ in range(2):
            await agent.say("pl-stranger", PlacementState.ACTIVE)
        stop = await agent.next_command("stop")
        assert (stop.seq, stop.payload["placement_id"]) == (1, "pl-stranger")
        async with on.pool.store.read() as reader:
            assert len(await reader.commands(agent.node_id)) == 1


async def test_a_report_sent_twice_counts_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        placement = await placed(on, agent)
        seen = {"placement_id": placement, "state": "failed", "reason": "exit 1"}
        for _ in range(2):
            await agent.report(report_id="rep-same", placements=[seen])
        failed = [
            event for event in await on.get("/v1/events", limit=1000) if event["kind"] == "placement.failed"
        ]
        assert [event["data"]["reason"] for event in failed] == ["exit 1"]
        assert (await on.get("/v1/workloads/demo"))["why"].startswith("failed 1 time in a row")


async def test_a_changed_spec_replaces_the_old_version_once_the_new_one_is_active(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        first = await placed(on, agent)
        assert (await on.deploy())["changed"] is False
        reply = await on.deploy(concurrency=8)
        assert (reply["created"], reply["changed"], reply["workload"]["version"]) == (False, True, 2)
        start = await agent.next_command("start", after=1)
        second = start.payload["placement_id"]
        assert (await on.get(f"/v1/placements/{first}"))["state"] == "active"
        await agent.say(second, PlacementState.ACTIVE, port=30002)
        stop = await agent.next_command("stop", after=start.seq)
        assert stop.payload["placement_id"] == first


async def test_a_whole_gpu_makes_room_before_the_new_version_starts(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory(gpu_of("a"))
        await on.deploy(gpu_count=1)
        start = await agent.next_command("start")
        assert start.payload["device_ids"] == ["GPU-a-0"]
        first = start.payload["placement_id"]
        await agent.say(first, PlacementState.ACTIVE, port=30001)
        await on.deploy(gpu_count=1, concurrency=2)
        assert (await agent.next_command("stop")).payload["placement_id"] == first
        await agent.say(first, PlacementState.ENDED)
        assert (await agent.next_command("start", after=2)).payload["device_ids"] == ["GPU-a-0"]


async def test_a_version_that_fits_nowhere_leaves_the_old_one_running(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        first = await placed(on, agent)
        await on.deploy(memory_mb=1_000_000)
        assert "1000000 MiB asked" in await on.why()
        assert (await on.get(f"/v1/placements/{first}"))["state"] == "active"
        refusals = (await on.get("/v1/workloads/demo/why"))["refusals"]
        assert {refusal["rule"] for refusal in refusals} == {"memory", "cpu"}
        assert {refusal["subject"] for refusal in refusals} == {"cpu-node-a", agent.node_id}


async def test_scaling_places_more_and_drains_the_newest(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        first = await placed(on, agent)
        assert (await on.client.post("/v1/workloads/demo/scale", json={"wanted": 2})).status_code == 200
        second = (await agent.next_command("start", after=1)).payload["placement_id"]
        assert (await on.client.post("/v1/workloads/demo/scale", json={"wanted": 1})).status_code == 200
        assert (await agent.next_command("stop", after=2)).payload["placement_id"] == second
        assert (await on.get(f"/v1/placements/{first}"))["state"] == "active"


async def test_logs_make_the_round_trip_to_the_node(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        placement = await placed(on, agent)
        refused = await on.client.get(f"/v1/placements/{placement}/logs")
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        async with agent.stream(after=10) as commands:
            await eventually(lambda: on.pool.links.connected(agent.node_id), what="the stream")
            asked = asyncio.create_task(
                on.client.get(f"/v1/placements/{placement}/logs", params={"lines": 7})
            )
            command = await anext(commands)
            assert (command.seq, command.kind, command.payload["lines"]) == (0, "logs", 7)
            target = f"/v1/agent/logs/{command.payload['request_id']}"
            assert (await agent.send("POST", target, "größer\n".encode())).status_code == 204
            reply = await asked
        assert (reply.status_code, reply.text) == (200, "größer\n")
        assert (await agent.send("POST", target, b"late")).status_code == 404


async def test_a_new_command_stream_ends_the_old_one(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        async with agent.stream() as first:
            await eventually(lambda: on.pool.links.connected(agent.node_id), what="the first stream")
            async with agent.stream() as second:
                async with asyncio.timeout(20):
                    assert [command async for command in first] == []
                await agent.inventory()
                await on.deploy()
                async with asyncio.timeout(20):
                    assert (await anext(second)).kind == "start"


async def test_long_polls_wake_at_the_next_event_and_end_when_control_stops(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        seen = (await on.get("/v1/events"))[-1]["seq"]
        waiting = asyncio.create_task(on.get("/v1/events", after=seen, wait=60))
        feed = asyncio.create_task(on.get("/v1/endpoints", after=seen, wait=60))
        await asyncio.sleep(0)
        await on.deploy()
        async with asyncio.timeout(20):
            assert (await waiting)[0]["kind"] == "workload.created"
            assert (await feed)["revision"] > seen
        seen = on.pool.changes.seq
        held = asyncio.create_task(on.client.get("/v1/events", params={"after": seen + 1000, "wait": 60}))
        await eventually(lambda: on.server.server_state.tasks, what="the request")
        await eventually(lambda: on.client._transport is not None, what="a client")
        on.pool.close()
        async with asyncio.timeout(20):
            assert (await held).json() == []


async def test_a_locked_node_takes_nothing_new(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory()
        assert (await on.client.post("/v1/nodes/node-a/lock")).json()["locked"] is True
        await on.deploy()
        assert "locked" in await on.why()
        assert (await on.client.post("/v1/nodes/node-a/unlock")).json()["locked"] is False
        assert (await agent.next_command("start")).payload["workload_name"] == "demo"


async def test_a_device_shown_by_two_nodes_stays_with_the_first(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        for name in ("node-a", "node-b"):
            agent = ScriptedAgent(on, name=name, folder=tmp_path)
            await agent.join()
            await agent.inventory(cpu_of(name), gpu_of("same"))
        devices = {device["id"]: device["node"] for device in await on.get("/v1/devices")}
        assert devices == {"cpu-node-a": "node-a", "cpu-node-b": "node-b", "GPU-same-0": "node-a"}
        kinds = [event["kind"] for event in await on.get("/v1/events", limit=1000)]
        assert kinds.count("device.disputed") == 1


async def test_a_card_that_vanishes_is_kept_as_absent(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        agent = ScriptedAgent(on, folder=tmp_path)
        await agent.join()
        await agent.inventory(gpu_of("a", 0), gpu_of("a", 1))
        await agent.inventory(gpu_of("a", 0))
        present = {device["id"]: device["present"] for device in await on.get("/v1/devices")}
        assert present == {"GPU-a-0": True, "GPU-a-1": False}


@pytest.mark.parametrize("path", ["nodes", "devices", "workloads", "placements"])
async def test_lists_come_in_pages(tmp_path: Path, path: str) -> None:
    async with stage(tmp_path) as on:
        for name in ("node-a", "node-b", "node-c"):
            agent = ScriptedAgent(on, name=name, folder=tmp_path)
            await agent.join()
            await agent.inventory()
            await on.deploy(f"demo-{name}")
        await on.until("/v1/placements", lambda found: len(found) == 3)
        whole = [item["id"] for item in await on.get(f"/v1/{path}")]
        pages, cursor = [], None
        while True:
            query = {"limit": "2", **({"cursor": cursor} if cursor else {})}
            reply = await on.client.get(f"/v1/{path}", params=query)
            pages.append([item["id"] for item in reply.json()])
            cursor = reply.headers.get("X-Next-Cursor")
            if cursor is None:
                break
        assert pages == [whole[:2], whole[2:]]
        refused = await on.client.get(f"/v1/{path}", params={"cursor": "nothing"})
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_input")
