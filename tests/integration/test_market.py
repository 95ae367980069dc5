"""The market as a process: the whole way of an instance, spoken over the real wire with the miner's real client."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpupool.core.errors import (
    ConflictError,
    InvalidInputError,
    NoCapacityError,
    NotFoundError,
    UnauthorizedError,
)
from gpupool.validators.chutes.client import ChutesValidator
from market_stage import MINER, OTHER, MarketProcess, ScriptedInstance, a_gpu
from polling import eventually


@pytest_asyncio.fixture
async def market(tmp_path: Path) -> AsyncIterator[MarketProcess]:
    async with MarketProcess(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def miner(market: MarketProcess) -> AsyncIterator[ChutesValidator]:
    async with market.miner() as client:
        yield client


async def registered(miner: ChutesValidator, *numbers: int, server: str = "server-1") -> list[str]:
    gpus = [a_gpu(number) for number in numbers]
    registration = await miner.register(
        gpus, server_id=server, server_name=server, host="127.0.0.1", port=30_050
    )

    async def verified() -> bool:
        return (await miner.verification(registration)).state == "verified"

    await eventually(verified, what="verified GPUs")
    return [gpu.uuid for gpu in gpus]


async def test_an_instance_from_its_token_to_its_pay(market: MarketProcess, miner: ChutesValidator) -> None:
    chute = await market.publish(target=1)
    offered = (await miner.chutes()).items[chute["chute_id"]]
    assert (offered.image, offered.gpu_count, offered.supported_gpus) == (
        "ada/base:1.0",
        1,
        frozenset({"a6000"}),
    )
    assert await miner.chute(offered.id, offered.version) == offered
    (gpu,) = await registered(miner, 1)
    launch = await miner.launch(offered.id)
    granted = await ScriptedInstance(market.client, launch.token).begin([gpu])
    (instance,) = (await miner.instances()).items.values()
    assert (instance.id, instance.config_id, instance.active) == (
        granted["instance_id"],
        launch.config_id,
        True,
    )
    with pytest.raises(NoCapacityError, match="1 instances that are wanted"):
        await miner.launch(offered.id)
    await miner.end_instance(offered.id, instance.id)
    await miner.end_instance(offered.id, instance.id)
    assert (await miner.instances()).items == {}
    lines = await market.own("GET", "/market/ledger")
    assert [line["kind"] for line in lines] == ["bounty", "compute"] or [line["kind"] for line in lines] == [
        "compute"
    ]
    assert lines[-1]["server_id"] == "server-1"
    assert lines[-1]["units"] == pytest.approx(lines[-1]["seconds"] * 0.5 / 4.5)


async def test_everything_outlives_a_kill(market: MarketProcess, miner: ChutesValidator) -> None:
    chute = await market.publish(target=3)
    first, second = await registered(miner, 1, 2)
    launch = await miner.launch(chute["chute_id"])
    await ScriptedInstance(market.client, launch.token).begin([first])
    pending = await miner.launch(chute["chute_id"])
    market.process.kill()
    await market.start()
    async with market.miner() as again:
        (instance,) = (await again.instances()).items.values()
        assert instance.active
        assert set((await again.gpus()).items) == {first, second}
        late = ScriptedInstance(market.client, pending.token)
        late_url = late.claims["url"].replace(late.claims["url"].split("/instances")[0], market.url)
        reply = await late.send(
            "POST",
            late_url,
            {
                "gpus": [{"uuid": second}],
                "host": "127.0.0.1",
                "port_mappings": [{"proto": "tcp", "internal_port": 8000, "external_port": 30_300}],
            },
        )
        assert reply.status_code == 200, reply.text


async def test_what_is_refused_of_a_registration(market: MarketProcess, miner: ChutesValidator) -> None:
    where: dict[str, Any] = {"server_id": "s", "server_name": "s", "host": "127.0.0.1", "port": 30_050}
    with pytest.raises(InvalidInputError, match="80 SMs, the catalog's RTX A6000 has 84"):
        await miner.register([a_gpu(1, processors=80)], **where)
    with pytest.raises(InvalidInputError, match="is the catalog's a6000, not h100"):
        await miner.register([a_gpu(1, short_ref="h100")], **where)
    assert (await miner.gpus()).items == {}, "a refused server leaves nothing"
    (gpu,) = await registered(miner, 1)
    async with market.miner(OTHER) as other:
        with pytest.raises(ConflictError, match=gpu):
            await other.register([a_gpu(1), a_gpu(2)], **where)
        assert (await other.gpus()).items == {}
        await other.forget_gpu(gpu)
    assert set((await miner.gpus()).items) == {gpu}, "another miner's GPU was forgotten"
    await miner.forget_gpu(gpu)
    assert (await miner.gpus()).items == {}


async def test_what_an_instance_cannot_do(market: MarketProcess, miner: ChutesValidator) -> None:
    chute = await market.publish(target=5)
    first, second = await registered(miner, 1, 2)
    token = (await miner.launch(chute["chute_id"])).token
    instance = ScriptedInstance(market.client, token)
    assert (await ScriptedInstance(market.client, token, host="10.0.0.9").claim([first])).status_code == 403
    assert (await instance.claim([first, second])).status_code == 400
    assert (await instance.claim(["f" * 32])).status_code == 403
    forged = ScriptedInstance(market.client, token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB"))
    assert (await forged.claim([first])).status_code == 401
    claimed = await instance.claim([first])
    assert claimed.status_code == 200
    assert (await instance.claim([first])).status_code == 401, "one token, one claim"
    other = ScriptedInstance(market.client, (await miner.launch(chute["chute_id"])).token)
    assert (await other.claim([first])).status_code == 409, "one GPU, one instance"
    wrong = claimed.json()
    wrong["symmetric_key"]["response_plaintext"] = "something else"
    refused = await instance.prove(wrong, [first])
    assert (refused.status_code, "does not hold the key" in refused.text) == (403, True)
    assert (await other.claim([first])).status_code == 200, "what failed holds no GPU"


async def test_only_a_signed_word_counts(market: MarketProcess, tmp_path: Path) -> None:
    async with ChutesValidator("v", market.url, MINER, now=lambda: 1_000_000.0) as late:
        with pytest.raises(UnauthorizedError, match=r"clock is [0-9]+ s behind"):
            await late.gpus()
    reply = await market.client.get("/miner/nodes/")
    assert (reply.status_code, reply.json()["detail"]) == (401, "Invalid nonce!")
    assert (
        await market.client.get("/market/ledger", headers={"Authorization": "Bearer x"})
    ).status_code == 401
    async with MarketProcess(tmp_path / "closed", GPUPOOL_MARKET_MINERS=OTHER.address) as closed:
        async with closed.miner() as stranger:
            with pytest.raises(UnauthorizedError, match="takes no part"):
                await stranger.gpus()
        async with closed.miner(OTHER) as member:
            assert (await member.gpus()).items == {}


async def test_jobs_go_to_one_miner_and_come_back(market: MarketProcess, miner: ChutesValidator) -> None:
    chute = await market.publish(cords=[], jobs=[{"name": "train", "ports": [["tcp", 9000]]}])
    assert (await miner.chutes()).items[chute["chute_id"]].job_only
    (gpu,) = await registered(miner, 1)
    job = await market.own(
        "POST", "/market/jobs", chute_id=chute["chute_id"], method="train", arguments={"n": 1}
    )
    launch = await miner.launch(chute["chute_id"], job["job_id"])
    async with market.miner(OTHER) as other:
        with pytest.raises(NoCapacityError, match="taken"):
            await other.launch(chute["chute_id"], job["job_id"])
        with pytest.raises(NotFoundError):
            await other.launch(chute["chute_id"], "none")
    granted = await ScriptedInstance(market.client, launch.token).begin([gpu])
    assert (granted["job_method"], granted["job_data"]) == ("train", {"n": 1})
    done = await market.client.post(granted["job_status_url"], json={"loss": 0.5})
    assert done.json() == {"job_id": job["job_id"], "status": "done"}
    (ended,) = await market.own("GET", "/market/jobs")
    assert (ended["status"], ended["result"]) == ("done", {"loss": 0.5})
    assert (await miner.instances()).items == {}
