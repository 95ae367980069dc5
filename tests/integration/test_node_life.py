"""A node's life in a pool of real processes: invited, drained onto another node, removed, refused, invited again."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from typer.testing import CliRunner, Result

from gpupool.cli.main import app
from gpupool.core.home import Home
from gpupool.runtimes.process.marks import find_marked
from light_pool import QUICK, LightPool, Member, endpoints
from polling import eventually


class Machine:
    """A further machine: an agent on a state folder of its own, started by the line that `node add` printed."""

    def __init__(self, pool: LightPool, name: str) -> None:
        self.home = Home(pool.folder / name)
        self.env = {**QUICK, "GPUPOOL_HOME": str(self.home.root), "GPUPOOL_MACHINE_IDENTITY": name}
        self.agent = Member("agent", [], self.env, pool.folder / f"{name}.log")

    def paste(self, line: str) -> None:
        """Run a join command, as a shell would."""
        token, *words = line.split()
        variable, value = token.split("=")
        assert words[:3] == ["gpupool", "agent", "run"]
        self.agent.env = {**self.env, variable: value}
        self.agent.arguments = words[1:]
        self.agent.start()

    def processes(self) -> list[int]:
        """Return the processes of its workloads."""
        return [found.process.pid for found in find_marked(self.home.agent / "runs")]


@pytest_asyncio.fixture
async def pool(tmp_path: Path) -> AsyncIterator[LightPool]:
    async with LightPool(tmp_path) as running:
        await running.start()
        yield running


@pytest_asyncio.fixture
async def second(pool: LightPool) -> AsyncIterator[Machine]:
    machine = Machine(pool, "second")
    yield machine
    machine.agent.kill()
    for process in machine.processes():
        os.kill(process, signal.SIGKILL)


async def events(pool: LightPool, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await pool.get("/v1/events?limit=1000")
    return [event for event in found if event["kind"] == kind]


async def cli(pool: LightPool, *words: str) -> Result:
    """Run a command in a thread of this process, which costs no start of Python."""
    env = {"GPUPOOL_HOME": str(pool.home.root), "GPUPOOL_CONTROL_URL": pool.url}
    runner = CliRunner()
    return await asyncio.to_thread(lambda: runner.invoke(app, words, input="n\n", env=env))


async def said(pool: LightPool, *words: str) -> str:
    told = await cli(pool, *words)
    assert told.exit_code == 0, (told.output, told.exception)
    return told.stdout


async def invited(pool: LightPool, *options: str) -> str:
    """Return the line that `node add` prints for the second node."""
    told = await said(pool, "node", "add", "--name", "second", "--address", "127.0.0.1", *options)
    return told.strip()


async def test_work_moves_off_a_drained_node_and_a_removed_node_is_refused_until_invited_again(
    pool: LightPool, second: Machine
) -> None:
    line = await invited(pool, "--hourly-usd", "1.5", "--region", "de-fra", "--short-ref", "l4")
    second.paste(line)

    async def ready() -> bool:
        return "second" in [node["name"] for node in await pool.get("/v1/nodes?state=ready")]

    await eventually(ready, what="a ready second node")
    node = json.loads(await said(pool, "node", "show", "second", "--json"))
    assert (node["hourly_usd"], node["region"]) == (1.5, "de-fra")
    assert "announced with l4, and has no GPU" in await said(pool, "node", "list", "--region", "de-fra")
    await said(pool, "node", "lock", "second")

    await pool.deploy("hello")
    before = await pool.active("hello")
    (placement,) = [p["id"] for p in before["placements"] if p["state"] == "active"]
    await said(pool, "node", "unlock", "second")
    drained = await said(pool, "node", "drain", "tested", "--wait", "--timeout", "60")
    assert "tested: drained; nothing runs there" in drained
    moved = await pool.active("hello")
    assert [p["node"] for p in moved["placements"] if p["state"] == "active"] == ["second"]
    active_at = [e["seq"] for e in await events(pool, "placement.active")]
    (ended,) = [e for e in await events(pool, "placement.draining") if e["subject"] == placement]
    assert ended["data"]["reason"] == "its node tested is drained"
    assert ended["seq"] > active_at[-1], "the old one was stopped before its replacement was active"
    assert [e["data"]["by"] for e in await events(pool, "node.draining")] == ["operator@127.0.0.1"]
    assert len(await events(pool, "node.drained")) == 1

    refused = await cli(pool, "node", "remove", "second")
    assert refused.exit_code == 1
    assert "second runs hello (1 deployment(s))" in refused.stdout
    await said(pool, "node", "undrain", "tested")
    assert second.processes()
    await said(pool, "node", "remove", "second", "--yes")
    await eventually(lambda: not second.processes(), what="the end of what ran on the removed node")
    await eventually(lambda: "was removed from the pool" in second.agent.log.read_text(), what="the reason")
    assert second.agent.runs, "a removed node's agent does not end"
    back = await pool.active("hello")
    assert [p["node"] for p in back["placements"] if p["state"] == "active"] == ["tested"]
    assert endpoints(back)
    assert [n["name"] for n in await pool.get("/v1/nodes")] == ["tested"]
    assert [n["name"] for n in await pool.get("/v1/nodes?state=removed")] == ["second"]
    history = await pool.get(f"/v1/placements?node={node['id']}")
    assert [p["reason"] for p in history] == ["its node was removed"]

    second.agent.send(signal.SIGTERM)
    await second.agent.ended()
    second.paste(line)
    log = second.agent.log
    told = log.read_text().count("was removed from the pool")
    await eventually(lambda: log.read_text().count("was removed from the pool") > told, what="a refusal")
    second.agent.kill()
    second.paste(await invited(pool))
    await eventually(ready, what="the machine back in the pool under its old key")
    assert not re.search(r"gpj_", log.read_text() + pool.control.log.read_text())
