"""Secrets in a workload's environment: hidden in every view, kept when they come back hidden, clear to the node only."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from control_stage import Stage, stage

SECRET = "planted-secret-77aa"
SPEC: dict[str, Any] = {
    "name": "guarded",
    "command": ["serve"],
    "env": {"HF_TOKEN": SECRET, "LANG": "C.UTF-8"},
    "replicas": 0,
}


@pytest_asyncio.fixture
async def control(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path) as made:
        yield made


async def deploy(control: Stage, env: dict[str, str]) -> Any:
    return await control.client.post("/v1/workloads", json={"spec": {**SPEC, "env": env}})


async def test_no_view_shows_a_secret(control: Stage) -> None:
    deployed = await deploy(control, SPEC["env"])
    answers = [
        deployed,
        *[await control.client.get(path) for path in ("/v1/workloads", "/v1/workloads/guarded")],
    ]
    answers += [
        await control.client.get(path) for path in ("/v1/pool", "/v1/events", "/v1/workloads/guarded/why")
    ]
    for answer in answers:
        assert answer.status_code in {200, 201}
        assert SECRET not in answer.text
    assert answers[2].json()["spec"]["env"] == {"HF_TOKEN": "***", "LANG": "C.UTF-8"}


async def test_the_same_spec_again_changes_nothing(control: Stage) -> None:
    await deploy(control, SPEC["env"])
    again = (await deploy(control, SPEC["env"])).json()
    assert (again["created"], again["changed"], again["workload"]["version"]) == (False, False, 1)
    other = (await deploy(control, {**SPEC["env"], "HF_TOKEN": "another"})).json()
    assert (other["changed"], other["workload"]["version"]) == (True, 2)


async def test_a_secret_that_comes_back_hidden_keeps_its_value(control: Stage) -> None:
    await deploy(control, SPEC["env"])
    shown = (await control.client.get("/v1/workloads/guarded")).json()["spec"]["env"]
    again = (await deploy(control, {**shown, "LANG": "de"})).json()
    assert again["changed"] is True
    async with control.pool.store.read() as view:
        kept = await view.workload_by_name("guarded")
    assert kept is not None
    assert kept.spec.env == {"HF_TOKEN": SECRET, "LANG": "de"}


async def test_a_hidden_secret_that_never_was_is_refused(control: Stage) -> None:
    refused = await deploy(control, {"HF_TOKEN": "***"})
    assert refused.status_code == 400
    assert "HF_TOKEN" in refused.json()["detail"]


async def test_what_a_deleted_workload_was_given_is_forgotten(control: Stage) -> None:
    made = (await deploy(control, SPEC["env"])).json()["workload"]
    assert (await control.client.delete("/v1/workloads/guarded")).status_code in {200, 204}
    async with control.pool.store.read() as view:
        kept = await view.workload(made["id"])
    assert kept is not None
    assert kept.deleted
    assert kept.spec.env == {}
