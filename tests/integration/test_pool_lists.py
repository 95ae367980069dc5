"""The lists of a pool of real processes: what their filters leave, what a shell completes, what is said of none left."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from gpupool.cli import completing
from gpupool.cli.main import app
from light_pool import LightPool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LightPool]:
    """Serve one app, and want another one that no machine of the pool can take."""
    async with LightPool(tmp_path_factory.mktemp("lists")) as running:
        await running.start()
        await running.deploy("hello", openai=True, models=["tiny"])
        await running.deploy("large", memory_mb=4_194_304)
        await running.active("hello")
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def run(pool: LightPool, *words: str) -> Result:
    env = {"GPUPOOL_HOME": str(pool.home.root), "GPUPOOL_CONTROL_URL": pool.url}
    return await asyncio.to_thread(lambda: CliRunner().invoke(app, words, env=env))


async def listed(pool: LightPool, *words: str) -> list[dict[str, Any]]:
    told = await run(pool, *words, "--json")
    assert told.exit_code == 0, told.output
    found: list[dict[str, Any]] = json.loads(told.stdout)
    return found


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), ["hello", "large"]),
        (("--lacking",), ["large"]),
        (("--model", "tiny"), ["hello"]),
        (("--kind", "chute"), ["hello", "large"]),
        (("--kind", "recompute"), []),
    ],
    ids=lambda value: " ".join(value) or "all",
)
async def test_chutes(pool: LightPool, words: tuple[str, ...], names: list[str]) -> None:
    assert [found["name"] for found in await listed(pool, "chute", "list", *words)] == names


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ((), 1),
        (("--chute", "hello", "--node", "tested"), 1),
        (("--state", "active"), 1),
        (("--chute", "large"), 0),
        (("--state", "failed"), 0),
        (("--all",), 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
async def test_deployments(pool: LightPool, words: tuple[str, ...], count: int) -> None:
    assert [found["workload"] for found in await listed(pool, "deployment", "list", *words)] == [
        "hello"
    ] * count


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ((), 1),
        (("--node", "tested", "--free-mib", "1"), 1),
        (("--free-mib", "900000000"), 0),
        (("--idle",), 0),
        (("--model", "h100"), 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
async def test_devices(pool: LightPool, words: tuple[str, ...], count: int) -> None:
    assert [found["node"] for found in await listed(pool, "gpu", "pool", *words)] == ["tested"] * count


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("chute", "list", "--model", "huge"), "Workloads: none like this"),
        (("deployment", "list", "--node", "nowhere"), "Deployments: none like this"),
        (("gpu", "pool", "--model", "h100"), "Devices: none like this"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
async def test_a_filter_that_leaves_nothing_says_so(
    pool: LightPool, words: tuple[str, ...], line: str
) -> None:
    assert (await run(pool, *words)).stdout.strip() == line


async def test_a_deployment_is_shown_with_what_it_holds(pool: LightPool) -> None:
    (found,) = await listed(pool, "deployment", "list")
    shown = await run(pool, "deployment", "show", found["id"])
    assert found["address"] in shown.stdout
    assert "shared" in shown.stdout
    unknown = await run(pool, "deployment", "show", "pl-none")
    assert (unknown.exit_code, unknown.stdout) != (0, "")
    asked = await run(pool, "deployment", "logs", found["id"])
    assert asked.exit_code == 0


async def test_a_shell_completes_names_of_the_pool(
    pool: LightPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(pool.home.root))
    monkeypatch.setenv("GPUPOOL_CONTROL_URL", pool.url)
    (placement,) = await listed(pool, "deployment", "list")
    assert await asyncio.to_thread(completing.chute_names, "") == ["hello", "large"]
    assert await asyncio.to_thread(completing.chute_names, "la") == ["large"]
    assert await asyncio.to_thread(completing.node_names, "te") == ["tested"]
    assert await asyncio.to_thread(completing.deployment_ids, "pl-") == [placement["id"]]
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path))
    assert await asyncio.to_thread(completing.chute_names, "") == [], "without a token nothing is offered"


async def test_a_shell_is_told_over_its_own_protocol(pool: LightPool) -> None:
    env = {"_GPUPOOL_COMPLETE": "complete_bash", "COMP_WORDS": "gpupool chute show h", "COMP_CWORD": "3"}
    env |= {"GPUPOOL_HOME": str(pool.home.root), "GPUPOOL_CONTROL_URL": pool.url}
    told = await asyncio.to_thread(lambda: CliRunner().invoke(app, [], prog_name="gpupool", env=env))
    assert told.stdout.split() == ["hello"]
