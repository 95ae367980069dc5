"""The alert routes and their commands over a control of the test's own: what is shown, silences, and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from control_stage import Stage, stage
from fleet_samples import an_alarm, later
from gpupool.cli.alerts import app
from gpupool.control.routes.alerts import MOST_SILENCES
from gpupool.core.errors import GpupoolError


@pytest_asyncio.fixture
async def here(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path) as made:
        yield made


async def command(here: Stage, *arguments: str) -> tuple[int, str]:
    """Run ``gpupool alerts`` in a thread; return exit code and what it printed."""
    env = {"GPUPOOL_CONTROL_URL": here.url, "GPUPOOL_TOKEN": here.tokens.operator}
    ran = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env=env)
    if isinstance(ran.exception, GpupoolError):
        return ran.exception.exit_code, ran.exception.message
    return ran.exit_code, ran.output


def silence(**changes: Any) -> dict[str, Any]:
    return {"pattern": "gpu-*", "seconds": 60, "why": "moving", "by": "ann", **changes}


async def test_alarms_are_shown_with_what_silences_them(here: Stage) -> None:
    desk = here.desk
    desk.alarms = type(desk.alarms)(
        [an_alarm(since=later(5)), an_alarm(rule="chute_down", label="chat", told_at=later(9))]
    )
    assert (await here.client.post("/v1/silences", json=silence())).status_code == 201
    shown = await here.get("/v1/alerts")
    assert [(alarm["title"], alarm["label"], len(alarm["silenced_by"])) for alarm in shown["alarms"]] == [
        ("chute down", "chat", 0),
        ("node silent", "gpu-1", 1),
    ]
    assert [target["kind"] for target in shown["targets"]] == ["log"]
    code, told = await command(here, "list")
    assert code == 5
    assert "silenced" in told
    assert "told" in told
    metrics = (await here.client.get("/metrics")).text
    assert 'gpupool_alarms{rule="chute_down",severity="critical"} 1.0' in metrics


async def test_a_silence_is_made_shown_and_ended_by_command(here: Stage) -> None:
    code, made = await command(here, "silence", "gpu-*", "--for", "2h", "--why", "new racks", "--json")
    assert code == 0, made
    silence_id = json.loads(made)["id"]
    code, told = await command(here, "silences")
    assert code == 0
    assert silence_id in told
    assert "new racks" in told
    (shown,) = await here.get("/v1/silences")
    assert shown["pattern"] == "gpu-*"
    assert "@" in shown["by"]
    assert (await command(here, "unsilence", silence_id))[0] == 0
    assert await here.get("/v1/silences") == []
    assert (await command(here, "unsilence", silence_id))[0] == 4
    kinds = [event["kind"] for event in await here.get("/v1/events", limit=100)]
    assert kinds[-2:] == ["alert.silenced", "alert.unsilenced"]


WRONG: list[dict[str, Any]] = [
    {"pattern": ""},
    {"pattern": "x" * 201},
    {"pattern": "two\nlines"},
    {"seconds": 0},
    {"seconds": 1e12},
    {"why": ""},
    {"by": "x" * 101},
    {"until": "tomorrow"},
]


async def test_a_silence_that_makes_no_sense_is_refused(here: Stage) -> None:
    for changes in WRONG:
        reply = await here.client.post("/v1/silences", json=silence(**changes))
        assert (reply.status_code, reply.json()["code"]) == (400, "invalid_input"), changes
    assert await here.get("/v1/silences") == []


async def test_there_may_be_so_many_silences_and_no_more(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool.control.routes.alerts.MOST_SILENCES", 1)
    assert MOST_SILENCES > 1
    assert (await here.client.post("/v1/silences", json=silence())).status_code == 201
    reply = await here.client.post("/v1/silences", json=silence())
    assert (reply.status_code, reply.json()["code"]) == (409, "limit_reached")


async def test_a_test_message_goes_to_the_log_where_nobody_is_named(here: Stage) -> None:
    code, told = await command(here, "test")
    assert code == 0, told
    assert "taken" in told
    assert (await command(here, "test", "--to", "nobody"))[0] == 4


async def test_alerts_are_for_the_operator(here: Stage) -> None:
    async with here.anonymous(here.tokens.service) as client:
        for method, path in (("GET", "/v1/alerts"), ("POST", "/v1/silences"), ("POST", "/v1/alerts/test")):
            assert (await client.request(method, path, json={})).status_code == 403
    async with here.anonymous() as client:
        assert (await client.get("/v1/alerts")).status_code == 401


async def test_whoever_follows_the_feed_is_noted(here: Stage) -> None:
    async with here.anonymous(here.tokens.service) as client:
        for name in ("recompute.farm-1", "no name of a follower", "x" * 101):
            await client.get("/v1/endpoints", headers={"X-Gpupool-Follower": name})
    assert list(here.desk.followers.known()) == ["recompute.farm-1"]
