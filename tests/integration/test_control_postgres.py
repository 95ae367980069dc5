"""Control over PostgreSQL, which takes less than SQLite: no NUL in a text, no number beyond 31 bits, no infinity."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from control_stage import ScriptedAgent, Stage, cpu_of, stage
from gpupool.core.ids import new_id
from postgres_server import migrated_database


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def on(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    where = migrated_database() if request.param == "postgres" else None
    async with stage(tmp_path, where=where) as staged:
        yield staged


async def said(agent: ScriptedAgent, **fields: Any) -> httpx.Response:
    """Send a report as it stands: what would be refused or mended by our own agent too."""
    values = {"report_id": new_id("rep"), "sent_at": "2026-01-01T00:00:00Z", "session": agent.session}
    body = json.dumps({**values, **fields}).encode()
    return await agent.send("POST", "/v1/agent/reports", body)


async def test_what_a_program_printed_never_keeps_a_report_out(on: Stage, tmp_path: Path) -> None:
    agent = ScriptedAgent(on, folder=tmp_path)
    await agent.join()
    await agent.inventory()
    await on.deploy()
    order = await agent.next_command("start")
    device = {
        **cpu_of("node-a").model_dump(mode="json"),
        "name": "a\0b",
        "short_ref": "\0",
        "failed_rules": ["\0"],
    }
    placement = {"placement_id": order.payload["placement_id"], "state": "failed", "reason": "exit 1: x\0y"}
    reply = await said(agent, complete=True, boot_id="b\0", devices=[device], placements=[placement])
    assert reply.status_code == 200, reply.text
    [shown] = (await on.get("/v1/pool"))["devices"]
    assert (shown["name"], shown["short_ref"]) == ("a\ufffdb", "\ufffd")
    workload = await on.until("/v1/workloads/demo", lambda found: found["failures"])
    assert workload["placements"][0]["reason"] == "exit 1: x\ufffdy"


async def test_numbers_that_no_database_takes_are_refused_as_input(on: Stage, tmp_path: Path) -> None:
    agent = ScriptedAgent(on, folder=tmp_path)
    await agent.join()
    await agent.inventory()
    seen = {"placement_id": "pl-1", "state": "active"}
    for fields in (
        {"acknowledged": 2**31},
        {"acknowledged": 2**70},
        {"placements": [{**seen, "restarts": 2**31}]},
        {"placements": [{**seen, "rate": float("inf")}]},
        {"devices": [{**cpu_of("node-a").model_dump(mode="json"), "hourly_usd": float("inf")}]},
    ):
        reply = await said(agent, **fields)
        assert (reply.status_code, reply.json()["code"]) == (400, "invalid_input"), fields


async def test_any_number_may_be_asked_after_and_no_nul(on: Stage) -> None:
    for after in (2**31 - 1, 2**31, 2**63 - 1):
        assert await on.get("/v1/events", after=after) == []
    for method, path in (
        ("GET", "/v1/events?subject=a%00b"),
        ("GET", "/v1/placements/a%00b"),
        ("DELETE", "/v1/workloads/a%00b"),
    ):
        reply = await on.client.request(method, path)
        assert (reply.status_code, "NUL" in reply.json()["detail"]) == (400, True), path
