"""The market's owner at the command line, against a market that runs."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from gpupool.cli.main import app
from market_stage import MarketProcess, ScriptedInstance, a_gpu
from polling import eventually

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "market" / "hello.yaml"
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def market(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MarketProcess]:
    async with MarketProcess(tmp_path_factory.mktemp("market")) as running:
        yield running


async def run(market: MarketProcess, *words: str) -> Result:
    env = {"GPUPOOL_HOME": str(market.home.root), "GPUPOOL_MARKET_URL": ""}
    return await asyncio.to_thread(lambda: CliRunner().invoke(app, ["market", *words], env=env, input="n\n"))


async def said(market: MarketProcess, *words: str) -> str:
    told = await run(market, *words)
    assert told.exit_code == 0, (told.output, told.exception)
    return told.stdout


async def test_from_the_example_to_the_ledger(market: MarketProcess) -> None:
    assert "none; publish one" in await said(market, "list")
    assert "ada/base:1.0: published" in await said(market, "image", "ada/base:1.0")
    assert "hello: published, version" in await said(market, "publish", str(EXAMPLE))
    (chute,) = json.loads(await said(market, "list", "--json"))
    assert (chute["name"], chute["target"], chute["instances"]) == ("hello", 1, 0)
    await said(market, "scale", "hello", "2")
    assert "nothing was earned" in await said(market, "ledger")
    async with market.miner() as miner:
        gpu = a_gpu(1)
        registration = await miner.register(
            [gpu], server_id="rack-7", server_name="rack-7", host="127.0.0.1", port=30_050
        )

        async def verified() -> bool:
            return (await miner.verification(registration)).state == "verified"

        await eventually(verified, what="a verified GPU")
        launch = await miner.launch(chute["chute_id"])
        granted = await ScriptedInstance(market.client, launch.token).begin([gpu.uuid])
        assert "hello" in await said(market, "list")
        await miner.end_instance(chute["chute_id"], granted["instance_id"])
    for by, name in (("server", "rack-7"), ("model", "a6000"), ("chute", "hello")):
        (row,) = json.loads(await said(market, "ledger", "--by", by, "--json"))
        assert row["name"] == name
        assert row["usd"] == pytest.approx(row["compute_usd"] + row["bounty_usd"], abs=1e-5)
    rows = list(csv.DictReader(io.StringIO(await said(market, "ledger", "--csv"))))
    assert len(rows) == 1
    assert "total" in await said(market, "ledger")


async def test_a_job_is_asked_for_and_listed(market: MarketProcess, tmp_path: Path) -> None:
    await said(market, "image", "ada/train:1")
    file = tmp_path / "trainer.yaml"
    (tmp_path / "job.py").write_text("chute = 1\n")
    file.write_text(
        "user: ada\nname: trainer\nimage: ada/train:1\nref_str: job:chute\ncode_file: job.py\njobs: [{name: train}]\n"
    )
    await said(market, "publish", str(file))
    assert "waits for a miner" in await said(market, "job", "trainer", "train", '{"epochs": 3}')
    (job,) = json.loads(await said(market, "jobs", "--json"))
    assert (job["method"], job["status"]) == ("train", "waiting")
    assert "trainer" in await said(market, "jobs")
    assert (await run(market, "withdraw", "trainer")).exit_code == 1
    assert "trainer: withdrawn" in await said(market, "withdraw", "trainer", "--yes")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("image", "base"), "is no image"),
        (("publish", "/nowhere.yaml"), "cannot be read"),
        (("scale", "ghost", "1"), "no chute 'ghost'"),
        (("job", "hello", "train", "[1]"), "no JSON object"),
        (("job", "hello", "train"), "offers no job 'train'"),
        (("list", "--market", "http://127.0.0.1:9"), "cannot be reached"),
        (("list", "--market", "http://["), "cannot be reached"),
    ],
    ids=range(7),
)
async def test_what_is_refused_says_why(market: MarketProcess, words: tuple[str, ...], why: str) -> None:
    told = await run(market, *words)
    assert told.exit_code != 0
    assert why in str(told.exception) + told.output


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- a\n", "must be a mapping"),
        ("a: [", "is no YAML"),
        ("code: x\ncode_file: y\n", "gives both"),
        ("code_file: none.py\n", "cannot be read"),
        ("user: ada\nname: x\nimage: ada/base:1.0\nprice: 3\n", "price"),
    ],
    ids=range(5),
)
async def test_a_file_that_is_no_chute(market: MarketProcess, tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "chute.yaml"
    file.write_text(text)
    told = await run(market, "publish", str(file))
    assert told.exit_code != 0
    assert why in str(told.exception) + told.output
