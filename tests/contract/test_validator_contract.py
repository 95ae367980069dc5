"""What the pool expects of every validator: signatures, lists, registration, launch, deletion, events, refusals.

Runs against the embedded market in every test run, and unchanged against the real validator's code with
``make test-validator`` (see `tests/validator_counterparts.py`). Tests run in order and share one validator: its GPUs are
verified once, which takes the real one as long as a real card would.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import pytest_asyncio

import validator_counterparts as counterparts
from gpupool.core.errors import (
    ClockSkewError,
    ConflictError,
    InvalidInputError,
    NoCapacityError,
    NotFoundError,
    UnauthorizedError,
)
from gpupool.fleet.offers import Registration
from gpupool.fleet.ports.validator import Validator
from gpupool.validators.chutes.client import ChutesValidator
from gpupool.validators.chutes.events import Reason, ValidatorNews
from gpupool.validators.chutes.link import Link
from gpupool.validators.chutes.signing import signed_headers
from market_stage import MINER
from polling import eventually
from validator_counterparts import STRANGER, Counterpart, instance_of, miner_of

AGAINST = ["real" if counterparts.SOURCE in os.environ else "market"]
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=AGAINST)
async def validator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Counterpart]:
    run = counterparts.real if request.param == "real" else counterparts.market
    async with run(tmp_path_factory.mktemp("validator")) as counterpart:
        yield counterpart


@pytest_asyncio.fixture(loop_scope="module")
async def miner(validator: Counterpart) -> AsyncIterator[Validator]:
    async with miner_of(validator) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gpus(validator: Counterpart) -> list[str]:
    """Register and verify two GPUs."""
    given = [validator.gpu(0), validator.gpu(1)]
    async with miner_of(validator) as client:
        registration = await client.register(given, **validator.where)

        async def over() -> bool:
            seen = await client.verification(registration)
            assert seen.state in {"pending", "verified"}, seen
            return seen.over

        await eventually(over, seconds=200, what="verified GPUs")
    return [gpu.uuid for gpu in given]


@asynccontextmanager
async def listening(validator: Counterpart) -> AsyncIterator[list[ValidatorNews]]:
    """Hear what is broadcast, from when the link is up."""
    heard: list[ValidatorNews] = []

    async def hear(news: ValidatorNews) -> None:
        heard.append(news)

    async def compare() -> None:
        return

    link = Link("v", validator.events, MINER, on_news=hear, on_gap=compare, first_pause=0.1)
    running = asyncio.create_task(link.run())
    try:
        await eventually(lambda: link.trouble is None, what="a link that is up")
        yield heard
        assert link.passed_over == 0
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_it_names_the_models_that_it_takes(miner: Validator) -> None:
    rules = {rule.short_ref: rule for rule in await miner.supported_gpus()}
    assert len(rules) >= 25
    assert (rules["h100"].hourly_usd, rules["h100"].memory_gb) == (1.79, 80)


async def test_its_catalog_is_listed_and_asked_for(validator: Counterpart, miner: Validator) -> None:
    listing = await miner.chutes()
    assert (set(listing.items), listing.unusable) == ({validator.chute_id}, {})
    chute = listing.items[validator.chute_id]
    assert (chute.image, chute.gpu_count, chute.filename, chute.ref_str) == (
        "ada/base:1.0",
        1,
        "app.py",
        "app:chute",
    )
    assert {"3090", "a6000", "h100"} <= chute.supported_gpus
    assert await miner.chute(chute.id, chute.version) == chute
    assert [image.name for image in (await miner.images()).items.values()] == [chute.image]
    for wrong in ((chute.id, "no-version"), ("no-chute", chute.version)):
        with pytest.raises(NotFoundError):
            await miner.chute(*wrong)


async def test_an_empty_list_of_instances_says_so(miner: Validator) -> None:
    listing = await miner.instances()
    assert (dict(listing.items), listing.silent) == ({}, False)


async def test_what_it_has_nothing_of_is_an_empty_list(miner: Validator) -> None:
    assert dict((await miner.demand()).items) == {}
    assert dict((await miner.gpus()).items) == {}
    assert isinstance((await miner.bounties()).items, dict)


async def test_a_card_with_wrong_numbers_is_refused_whole(validator: Counterpart, miner: Validator) -> None:
    good = validator.gpu(5)
    for wrong in (
        validator.gpu(6, processors=80),
        validator.gpu(6, clock_khz=9.9e6),
        validator.gpu(6, memory_bytes=10**10),
    ):
        with pytest.raises(InvalidInputError, match="400"):
            await miner.register([good, wrong], **validator.where)
    assert dict((await miner.gpus()).items) == {}


async def test_gpus_are_verified_and_known(validator: Counterpart, miner: Validator, gpus: list[str]) -> None:
    known = (await miner.gpus()).items
    assert set(known) == set(gpus)
    assert all(gpu.verified_at is not None and gpu.fault is None for gpu in known.values())
    with pytest.raises(ConflictError, match=gpus[0]):
        await miner.register([validator.gpu(0)], **validator.where)
    with pytest.raises(UnauthorizedError):
        await miner.verification(Registration(f"{STRANGER.address}::x", None))


async def test_an_instance_goes_all_the_way(
    validator: Counterpart, miner: Validator, gpus: list[str]
) -> None:
    wanted = [
        Reason.INSTANCE_CREATED,
        Reason.INSTANCE_VERIFIED,
        Reason.INSTANCE_ACTIVATED,
        Reason.INSTANCE_DELETED,
    ]
    async with listening(validator) as heard:
        instance_id = await _life_of_an_instance(validator, miner, gpus)
        await eventually(lambda: {news.reason for news in heard} >= set(wanted), what="its whole life")
    own = [news for news in heard if news.reason in wanted]
    assert [news.reason for news in own] == wanted
    assert {news.content.instance_id for news in own} == {instance_id}


async def _life_of_an_instance(validator: Counterpart, miner: Validator, gpus: list[str]) -> str:
    launch, second = await miner.launch(validator.chute_id), await miner.launch(validator.chute_id)
    instance = instance_of(validator, launch.token)
    assert (instance.claims["sub"], instance.claims["iss"]) == (launch.config_id, "chutes")
    assert instance.claims["exp"] - instance.claims["iat"] == 7200
    claimed = await instance.claim(gpus[:1])
    assert claimed.status_code == 200, claimed.text
    assert (await instance.claim(gpus[:1])).status_code == 401
    asked: dict[str, Any] = claimed.json()
    assert asked["symmetric_key"]["response_plaintext"] == f"secret is {launch.config_id} {asked['seed']}"
    proved = await instance.prove(asked, gpus[:1])
    assert proved.status_code == 200, proved.text
    granted = proved.json()
    (found,) = (await miner.instances()).items.values()
    assert (found.id, found.config_id, found.active) == (granted["instance_id"], launch.config_id, False)
    activated = await instance.send("GET", granted["activation_url"])
    assert (activated.status_code, activated.json()["ok"]) == (200, True)
    (found,) = (await miner.instances()).items.values()
    assert (found.chute_id, found.host, found.port, found.active) == (
        validator.chute_id,
        "127.0.0.1",
        30_100,
        True,
    )
    other = await instance_of(validator, second.token).claim(gpus[:1])
    assert other.status_code in {400, 403, 409, 423}, other.text
    with pytest.raises(NoCapacityError):
        await _take_tokens(miner, validator.chute_id)
    await miner.end_instance(found.chute_id, found.id)
    await miner.end_instance(found.chute_id, found.id)
    assert dict((await miner.instances()).items) == {}
    return found.id


async def test_a_token_that_is_not_its_own_opens_nothing(
    validator: Counterpart, miner: Validator, gpus: list[str]
) -> None:
    token = (await miner.launch(validator.chute_id)).token
    head, _, tail = token.rpartition(".")
    forged = instance_of(validator, f"{head}.{tail[:-6]}{'AAAAAA' if tail[-6:] != 'AAAAAA' else 'BBBBBB'}")
    assert (await forged.claim(gpus[:1])).status_code == 401
    strange = instance_of(validator, token)
    assert (await strange.claim(["f" * 32])).status_code >= 400


async def _take_tokens(miner: Validator, chute_id: str) -> None:
    """Take more than there can be room for, one instance being active."""
    for _ in range(20):
        await miner.launch(chute_id)


async def test_there_is_no_token_for_what_does_not_exist(miner: Validator) -> None:
    with pytest.raises(NotFoundError):
        await miner.launch("no-such-chute")


async def test_what_is_gone_already_is_no_error(validator: Counterpart, miner: Validator) -> None:
    await miner.end_instance(validator.chute_id, "none")
    await miner.forget_gpu("f" * 32)
    await miner.release_job("none")


def off_by(seconds: float) -> Callable[[], float]:
    """Return a clock that is wrong by so much."""
    return lambda: time.time() + seconds


async def test_only_its_miners_are_let_in_and_only_on_time(validator: Counterpart) -> None:
    for drift in (-599.0 + 5, 590.0):
        async with ChutesValidator("v", validator.api, MINER, now=off_by(drift)) as off:
            await off.instances()
    async with ChutesValidator("v", validator.api, MINER, now=off_by(-700.0)) as late:
        with pytest.raises(ClockSkewError, match="s behind"):
            await late.instances()
    headers = signed_headers(MINER, time.time(), purpose="nodes")
    assert (await validator.http.get("/miner/nodes/", headers=headers)).status_code == 401
    headers = signed_headers(MINER, time.time(), body=b"{}")
    assert (
        await validator.http.post("/nodes/", content=b'{"nodes": []}', headers=headers)
    ).status_code == 401
    wrong = signed_headers(STRANGER, time.time(), purpose="miner") | {"X-Chutes-Hotkey": MINER.address}
    assert (await validator.http.get("/miner/nodes/", headers=wrong)).status_code == 401


async def test_what_older_miners_asked_is_gone(validator: Counterpart) -> None:
    body = b'{"active":true}'
    headers = signed_headers(MINER, time.time(), body=body)
    path = f"/instances/{validator.chute_id}"
    assert (await validator.http.patch(f"{path}/x", content=body, headers=headers)).status_code == 405
    assert (await validator.http.post(f"{path}/", content=body, headers=headers)).status_code == 404
