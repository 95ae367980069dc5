"""`gpupool hotkey` and `gpupool chute purge` against a control: what they do, print, ask and refuse."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from chutes_cli import ADDRESS
from control_stage import ScriptedAgent, Stage, cpu_of, gpu_of, stage
from gpupool.cli.main import app
from gpupool.core.errors import GpupoolError
from gpupool.fleet.placements import PlacementState


class Desk:
    """A stage with a shell."""

    def __init__(self, on: Stage, folder: Path) -> None:
        self.on, self.folder = on, folder

    async def run(self, *words: str, answer: str = "") -> Result:
        """Run a command as the operator."""
        env = {"GPUPOOL_CONTROL_URL": self.on.url, "GPUPOOL_TOKEN": self.on.tokens.operator}
        return await asyncio.to_thread(lambda: CliRunner().invoke(app, words, input=answer, env=env))

    async def said(self, *words: str, answer: str = "") -> str:
        """Return what a command that must succeed prints."""
        told = await self.run(*words, answer=answer)
        assert told.exit_code == 0, (told.output, told.exception)
        return told.stdout

    async def refused(self, *words: str) -> GpupoolError:
        """Return why a command fails."""
        told = await self.run(*words)
        assert isinstance(told.exception, GpupoolError), told.output
        return told.exception

    async def node(self, name: str, gpus: int) -> ScriptedAgent:
        """Let a machine join."""
        agent = ScriptedAgent(self.on, name, folder=self.folder)
        assert (await agent.join()).status_code == 200
        await agent.inventory(cpu_of(name, 32 * 1024), *(gpu_of(name, index) for index in range(gpus)))
        return agent

    async def active(self, agent: ScriptedAgent, name: str, **fields: Any) -> str:
        """Deploy a workload of one instance, and return its active deployment."""
        await self.on.deploy(name, **fields)

        def placed(found: dict[str, Any]) -> list[str]:
            return [one["id"] for one in found["placements"] if one["state"] == "planned"]

        [placement_id] = placed(await self.on.until(f"/v1/workloads/{name}", placed))
        await agent.say(placement_id, PlacementState.ACTIVE, port=31000)
        return placement_id

    async def ending(self) -> set[str]:
        """Return what is ending."""
        found = await self.on.get("/v1/placements")
        return {one["id"] for one in found if one["state"] == "draining"}


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with stage(tmp_path) as on:
        yield Desk(on, tmp_path)


async def test_hotkeys_are_let_in_listed_and_shut_out(desk: Desk) -> None:
    assert "lets one in" in await desk.said("hotkey", "list")
    told = await desk.said("hotkey", "add", "alice", ADDRESS)
    assert told == f"alice may ask as operator with {ADDRESS}.\n"
    added = json.loads(await desk.said("hotkey", "list", "--json"))
    assert [(key["name"], key["address"], key["role"]) for key in added] == [("alice", ADDRESS, "operator")]
    assert ADDRESS in await desk.said("hotkey", "list")
    assert "any more" in await desk.said("hotkey", "remove", ADDRESS)
    shown = json.loads(await desk.said("hotkey", "add", "bob", ADDRESS, "--role", "viewer", "--json"))
    assert (shown["role"], shown["created_by"]) == ("viewer", "operator@127.0.0.1")


async def test_what_is_no_hotkey_is_refused_in_words(desk: Desk) -> None:
    await desk.said("hotkey", "add", "alice", ADDRESS)
    for words, code, part in (
        (("add", "bob", ADDRESS), "conflict", "hotkey alice already"),
        (("add", "bob", ADDRESS[:-1] + "Z"), "invalid_input", "no SS58 address"),
        (("add", "bob", "0xabc"), "invalid_input", "address"),
        (("add", "bob", ADDRESS, "--role", "admin"), "invalid_input", "an admin has an API token"),
        (("add", "bob", ADDRESS, "--role", "king"), "invalid_input", "role"),
        (("remove", "bob"), "not_found", "no hotkey 'bob'"),
    ):
        error = await desk.refused("hotkey", *words)
        assert (error.code, part in error.message) == (code, True), error.message


async def test_without_the_package_for_hotkeys_one_is_told_to_install_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "gpupool.validators.hotkeys")
    monkeypatch.delattr("gpupool.validators.hotkeys")
    monkeypatch.setitem(sys.modules, "sr25519", None)
    error = await desk.refused("hotkey", "add", "alice", ADDRESS)
    assert (error.code, "gpupool[validator]" in error.remedy) == ("environment", True)


async def test_purging_ends_what_was_named_and_nothing_else(desk: Desk) -> None:
    first, second = await desk.node("gpu-1", 1), await desk.node("gpu-2", 0)
    chute = await desk.active(first, "chute", gpu_count=1)
    recompute = await desk.active(second, "recompute", kind="recompute", openai=False, models=[])
    assert json.loads(await desk.said("chute", "purge", "--node", "gpu-2", "--yes", "--json")) == []
    told = await desk.run("chute", "purge", "--all", answer="n\n")
    assert (told.exit_code, await desk.ending()) == (1, set())
    shown = await desk.said("chute", "purge", "--all", answer="y\n")
    assert (chute in shown, await desk.ending()) == (True, {chute})
    assert "nothing that could be purged" in await desk.said("chute", "purge", "--all", "--yes")
    await desk.said("chute", "purge", recompute, "--yes")
    assert await desk.ending() == {chute, recompute}


async def test_a_purge_names_exactly_one_thing(desk: Desk) -> None:
    for words in ((), ("pl-1", "--all"), ("--node", "gpu-1", "--all"), ("pl-1", "--node", "gpu-1")):
        assert "Exactly one thing" in (await desk.refused("chute", "purge", "--yes", *words)).message
    assert (await desk.refused("chute", "purge", "pl-none", "--yes")).code == "not_found"
    assert (await desk.refused("chute", "purge", "--node", "none", "--yes")).code == "not_found"
    agent = await desk.node("gpu-1", 1)
    placement_id = await desk.active(agent, "chute", gpu_count=1)
    await agent.say(placement_id, PlacementState.FAILED, reason="died")
    assert (await desk.refused("chute", "purge", placement_id, "--yes")).code == "conflict"
