"""Work that cannot run: nowhere to put it, or nothing to load. People see the reason where they look."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from light_pool import LightPool

CARD = "L4 (stand-in: this CPU)"
GPU = {"GPUPOOL_STAND_IN_GPUS": "1", "GPUPOOL_STAND_IN_MODEL": "l4"}
ENGINE = ("python", "-m", "gpupool.engines.llamacpp", "--port", "{port}", "--model")
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LightPool]:
    async with LightPool(tmp_path_factory.mktemp("refused"), **GPU) as one:
        await one.start()
        yield one


@pytest.mark.parametrize(
    ("rule", "fields", "words"),
    [
        ("min_vram", {"gpu_count": 1, "min_vram_gb": 80}, [CARD, "81920 MiB are asked"]),
        ("include", {"gpu_count": 1, "include": ["h100"]}, [CARD, "is none of h100"]),
        ("exclude", {"gpu_count": 1, "exclude": ["l4"]}, [CARD, "is excluded"]),
        ("max_price", {"gpu_count": 1, "max_price": 0.001}, [CARD, "at most 0.001 USD"]),
        ("gpu_count", {"gpu_count": 8}, ["tested has 1 fitting free GPUs, 8 are asked"]),
        ("memory", {"memory_mb": 4_000_000}, ["4000000"]),
    ],
)
async def test_a_selector_that_nothing_satisfies_names_rule_and_device(
    pool: LightPool, rule: str, fields: dict[str, object], words: list[str]
) -> None:
    name = f"picky-{rule.replace('_', '-')}"
    await pool.deploy(name, **fields)

    async def reason() -> str | None:
        why: str | None = (await pool.workload(name))["why"]
        return why

    why: str = await pool.until(reason, "a reason")
    for word in words:
        assert word in why, why
    shown = pool.cli("chute", "show", name)
    assert " ".join(why.split()) in " ".join(shown.stdout.split()), shown.stdout
    status = pool.cli("status")
    assert name in status.stdout
    refusals = (await pool.get(f"/v1/workloads/{name}/why"))["refusals"]
    devices = {device["id"] for device in await pool.get("/v1/devices")}
    nodes = {node["id"] for node in await pool.get("/v1/nodes")}
    assert rule in {refusal["rule"] for refusal in refusals}
    assert {refusal["subject"] for refusal in refusals} <= devices | nodes | {"fleet"}
    await pool.delete(name)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"GG", "is not a GGUF file"),
        (b"GGUF\x03\x00\x00\x00" + bytes(64), "llama.cpp cannot serve"),
    ],
    ids=["missing", "cut in the magic", "truncated"],
)
async def test_a_model_file_that_cannot_be_used_is_the_reason_people_see(
    pool: LightPool, content: bytes | None, said: str
) -> None:
    model = pool.home.cache / "models" / "some.gguf"
    if content is not None:
        model.write_bytes(content)
        model.chmod(0o644)
    await pool.deploy(
        "broken", command=[*ENGINE, str(model)], health="/health", memory_mb=512, max_restarts=0
    )

    async def failed() -> str | None:
        reasons = [item["reason"] for item in (await pool.workload("broken"))["placements"]]
        return next((reason for reason in reasons if reason and reason.startswith("exit: code 3")), None)

    reason: str = await pool.until(failed, "a failed placement")
    assert said in reason
    assert "models/some.gguf" in reason
    shown = "".join(pool.cli("chute", "show", "broken").stdout.split())
    assert "".join(said.split()) in shown
    await pool.delete("broken")
