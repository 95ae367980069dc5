"""`chutes-miner-cli` 0.1.0 itself, every command that talks to the miner API, against a real control and a real agent.

Slow: its environment is made first, and each command starts a Python of its own.
"""

import asyncio
import json
import shlex
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import pytest_asyncio

from chutes_cli import ADDRESS, SEED, Recorder, hotkey_file, recorded, run
from light_pool import LightPool

pytestmark = pytest.mark.slow
STAND_IN = {"GPUPOOL_STAND_IN_GPUS": "2", "GPUPOOL_STAND_IN_MODEL": "l4"}


@pytest_asyncio.fixture
async def pool(tmp_path: Path) -> AsyncIterator[LightPool]:
    async with LightPool(tmp_path / "pool", **STAND_IN) as running:
        yield running


async def test_every_command_does_its_work(pool: LightPool, tmp_path: Path) -> None:
    hotkey = hotkey_file(tmp_path)

    async def client(*words: str) -> CompletedProcess[str]:
        return await asyncio.to_thread(run, pool.url, hotkey, *words)

    async def said(*words: str) -> str:
        told = await client(*words)
        assert told.returncode == 0, (words, told.stdout, told.stderr)
        return told.stdout

    known = ("--name", "tested", "--validator", ADDRESS)
    add = ("add-node", *known, "--hourly-cost", "0.5", "--gpu-short-ref", "l4")

    pool.control.start()
    await pool.until(lambda: pool.try_once("GET", "/readyz"), "control")
    stranger = await client(*add)
    assert (stranger.returncode != 0, "may not ask this control" in stranger.stdout) == (True, True)
    body = {"address": ADDRESS, "name": "alice", "role": "operator"}
    reply = await pool.ask("POST", "/v1/hotkeys", json=body)
    assert reply is not None
    assert reply.status_code == 201, reply.text

    told = await client(*add)
    assert told.returncode != 0
    problem = told.stdout[told.stdout.index("{") : told.stdout.rindex("}") + 1]
    line = json.loads(problem)["detail"]
    token, *words = shlex.split(line[line.index("GPUPOOL_JOIN_TOKEN=") :].partition(" --address ")[0])
    assert words == ["gpupool", "agent", "run", "--control", pool.url, "--name", "tested"]
    pool.agent.env["GPUPOOL_JOIN_TOKEN"] = token.partition("=")[2]
    pool.agent.start()
    await pool.until(pool.node_is_ready, "a ready node")
    assert "tested is ready: l4 at $0.50 an hour and GPU." in await said(*add)
    assert (await pool.get("/v1/nodes/tested"))["hourly_usd"] == 1.0

    await pool.deploy(gpu_count=1)
    seen = await pool.active()
    shown = await said("local-inventory")
    for word in ("Server: tested", "$0.50", "hello", "Active", "L4 (stand-in", "22.4GB", "2040", "58"):
        assert word in shown, shown
    [server] = json.loads(await said("local-inventory", "--raw-json"))
    [deployment] = server["deployments"]
    assert deployment["deployment_id"] == seen["placements"][0]["id"]

    assert "lock status is now: True" in await said("lock", "--name", "tested")
    assert (await pool.get("/v1/nodes/tested"))["locked"] is True
    assert "lock status is now: False" in await said("unlock", "--name", "tested")

    purges: list[tuple[str, ...]] = [
        ("purge-deployments",),
        ("purge-deployment", "--deployment-id", "THIS"),
        ("purge-deployment", "--node-id", "tested"),
    ]
    for purge in purges:
        before = str((await pool.active())["placements"][0]["id"])
        purged = json.loads(await said(*(before if word == "THIS" else word for word in purge)))
        assert [one["deployment_id"] for one in purged["deployments_purged"]] == [before], purge
        await pool.until(partial(_replaced, pool, before), "another deployment")

    deleted = json.loads(await said("delete-node", "--name", "tested"))
    assert deleted["status"] == "started"
    assert await pool.get("/v1/nodes") == []
    await pool.until(lambda: not pool.processes(), "the end of what the node ran")

    asked = [(e["kind"], e["data"]["by"]) for e in await pool.get("/v1/events?asked=true&limit=1000")]
    kinds = {kind for kind, by in asked if by == "alice@127.0.0.1"}
    assert kinds >= {"node.invited", "node.added", "node.locked", "node.unlocked", "node.removed"}
    assert _holders_of_the_seed(tmp_path) == [hotkey]


def _holders_of_the_seed(folder: Path) -> list[Path]:
    secret = SEED.removeprefix("0x").encode()
    return [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


async def _replaced(pool: LightPool, gone: str) -> bool:
    return bool((await pool.active())["placements"][0]["id"] != gone)


def test_it_still_sends_what_was_recorded(tmp_path: Path) -> None:
    with Recorder() as recorder:
        sent = recorder.record(hotkey_file(tmp_path))
    assert [one.shape for one in sent] == [one.shape for one in recorded()]
