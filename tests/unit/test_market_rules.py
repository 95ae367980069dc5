"""The market's rules with a clock that is turned: who gets a token, what a bounty grows to, what is paid, what expires."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpupool.market.billing import BILLED_EVERY, bill_due, unit_usd
from gpupool.market.bounties import NEWS_SECONDS, Bounties, bounty_list
from gpupool.market.declared import ANSWER_SECONDS
from gpupool.market.expiring import KEPT_SECONDS, expire
from gpupool.market.instances import bounty_amount, end, forget_gpu, verify
from gpupool.market.jobs import ask, release
from gpupool.market.launching import CLAIM_SECONDS, MOST_RACERS, TOKEN_SECONDS, issue
from gpupool.market.metering import HOUR, Meter
from gpupool.market.publishing import publish_image, remove_image, set_target, withdraw
from gpupool.market.records import JobState, LaunchState, Use
from gpupool.market.refusing import RefusedError
from market_books import ISSUER, PROOF, TRAINING, Bench, bench

MINER, OTHER = "5miner", "5other"


@pytest_asyncio.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path / "market.db") as made:
        yield made


async def test_a_chute_that_nobody_serves_may_be_raced_for_a_little(stand: Bench) -> None:
    chute = await stand.publish(target=1)
    for _ in range(3):
        await issue(stand.market, MINER, chute.id)
    with pytest.raises(RefusedError, match="being started") as told:
        await issue(stand.market, OTHER, chute.id)
    assert told.value.answer == 423


async def test_no_more_are_started_than_are_wanted_once_one_serves(stand: Bench) -> None:
    chute = await stand.publish(target=2)
    first, _ = await stand.gpus(MINER, 1, 2)
    await stand.running(MINER, chute, [first])
    await issue(stand.market, MINER, chute.id)
    with pytest.raises(RefusedError, match="the 2 instances that are wanted"):
        await issue(stand.market, MINER, chute.id)


async def test_the_last_places_are_for_others_where_there_are_others(stand: Bench) -> None:
    chute = await stand.publish(target=3)
    (first,) = await stand.gpus(MINER, 1)
    await stand.running(MINER, chute, [first])
    await stand.gpus(OTHER, 5, server="theirs")
    with pytest.raises(RefusedError, match="for other miners"):
        await issue(stand.market, MINER, chute.id)
    await issue(stand.market, OTHER, chute.id)


async def test_racers_have_a_limit(stand: Bench) -> None:
    chute = await stand.publish(target=100)
    for _ in range(MOST_RACERS):
        await issue(stand.market, MINER, chute.id)
    with pytest.raises(RefusedError, match="being started already"):
        await issue(stand.market, MINER, chute.id)


async def test_what_is_not_wanted_is_not_started(stand: Bench) -> None:
    chute = await stand.publish(target=0)
    with pytest.raises(RefusedError, match="being started"):
        await issue(stand.market, MINER, chute.id)


async def test_a_bounty_comes_grows_and_is_paid_to_whoever_serves_first(stand: Bench) -> None:
    chute = await stand.publish()
    bounties = Bounties(stand.market)
    await bounties.tend()
    stand.clock.advance(NEWS_SECONDS / 2)
    await bounties.tend()
    stand.clock.advance(NEWS_SECONDS)
    await bounties.tend()
    told = [news.data["bounty"] for news in stand.news if news.reason == "bounty_change"]
    assert told == [100, 100 + 3 * 90]
    (waiting,) = bounty_list(stand.market)
    assert (waiting["chute_id"], waiting["bounty_amount"], waiting["seconds_elapsed"]) == (chute.id, 370, 90)
    (gpu,) = await stand.gpus(MINER, 1)
    await stand.running(MINER, chute, [gpu])
    assert bounty_list(stand.market) == []
    (line,) = await stand.market.books.earnings(0, 1e12)
    assert (line.kind, line.hotkey, line.units) == ("bounty", MINER, 370)
    assert bounty_amount(1e9) == 86_400


async def test_every_second_at_work_is_paid_once(stand: Bench) -> None:
    chute = await stand.publish()
    (gpu,) = await stand.gpus(MINER, 1, server="rack-7")
    instance = await stand.running(MINER, chute, [gpu])
    stand.clock.advance(BILLED_EVERY - 1)
    assert await bill_due(stand.market) == 0
    stand.clock.advance(1)
    assert await bill_due(stand.market) == 1
    assert await bill_due(stand.market) == 0
    stand.clock.advance(100)
    await end(stand.market, MINER, chute.id, instance.id)
    lines = await stand.market.books.earnings(0, 1e12)
    assert [line.seconds for line in lines] == [BILLED_EVERY, 100]
    assert {line.server_id for line in lines} == {"rack-7"}
    assert sum(line.units for line in lines) == pytest.approx((BILLED_EVERY + 100) * chute.multiplier)
    assert lines[1].usd == pytest.approx(100 * chute.multiplier * unit_usd(stand.market))


async def test_nothing_is_paid_before_an_instance_serves(stand: Bench) -> None:
    chute = await stand.publish()
    (gpu,) = await stand.gpus(MINER, 1)
    token, answer = await stand.claimed(MINER, chute, [gpu])
    instance = await verify(stand.market, ISSUER, PROOF, token, answer)
    stand.clock.advance(500)
    await end(stand.market, MINER, chute.id, instance.id)
    assert await stand.market.books.earnings(0, 1e12) == []


async def test_a_proof_that_comes_late_is_none_and_frees_the_gpu(stand: Bench) -> None:
    chute = await stand.publish(target=5)
    (gpu,) = await stand.gpus(MINER, 1)
    token, answer = await stand.claimed(MINER, chute, [gpu])
    stand.clock.advance(ANSWER_SECONDS + 1)
    with pytest.raises(RefusedError, match="came after more than 120 s"):
        await verify(stand.market, ISSUER, PROOF, token, answer)
    await stand.running(MINER, chute, [gpu])


async def test_an_old_token_opens_nothing(stand: Bench) -> None:
    chute = await stand.publish()
    (gpu,) = await stand.gpus(MINER, 1)
    token, answer = await stand.claimed(MINER, chute, [gpu])
    stand.clock.advance(TOKEN_SECONDS + 1)
    with pytest.raises(RefusedError, match="has expired"):
        await verify(stand.market, ISSUER, PROOF, token, answer)


async def test_launches_of_which_nothing_comes_make_room_again(stand: Bench) -> None:
    chute = await stand.publish(target=1)
    (gpu,) = await stand.gpus(MINER, 1)
    await stand.claimed(MINER, chute, [gpu])
    for _ in range(2):
        await issue(stand.market, MINER, chute.id)
    stand.clock.advance(ANSWER_SECONDS + 1)
    await expire(stand.market, PROOF)
    states = sorted(launch.state for launch in stand.market.launches.values())
    assert states == [LaunchState.FAILED, LaunchState.ISSUED, LaunchState.ISSUED]
    stand.clock.advance(CLAIM_SECONDS)
    await expire(stand.market, PROOF)
    await stand.running(MINER, chute, [gpu])
    stand.clock.advance(KEPT_SECONDS + 1)
    await expire(stand.market, PROOF)
    assert [launch.state for launch in stand.market.launches.values()] == [LaunchState.VERIFIED]


async def test_a_changed_chute_tells_whose_instances_are_old_and_refuses_old_tokens(stand: Bench) -> None:
    chute = await stand.publish(target=5)
    first, second = await stand.gpus(MINER, 1, 2)
    instance = await stand.running(MINER, chute, [first])
    await issue(stand.market, OTHER, chute.id)
    changed = await stand.publish(target=5, code="chute = 2")
    assert changed.version != chute.version
    (news,) = [news for news in stand.news if news.reason == "rolling_update"]
    assert (news.hotkey, news.data["instance_id"], news.data["new_version"]) == (
        MINER,
        instance.id,
        changed.version,
    )
    await stand.running(MINER, changed, [second])
    before = len(stand.news)
    assert await stand.publish(target=5, code="chute = 2") == changed
    assert len(stand.news) == before, "what did not change is no news"


async def test_a_gpu_that_is_forgotten_takes_its_instance_along(stand: Bench) -> None:
    chute = await stand.publish()
    (gpu,) = await stand.gpus(MINER, 1)
    await stand.running(MINER, chute, [gpu])
    stand.clock.advance(10)
    await forget_gpu(stand.market, MINER, gpu)
    assert (stand.market.instances, stand.market.gpus) == ({}, {})
    assert stand.reasons[-1] == "instance_deleted"
    (line,) = await stand.market.books.earnings(0, 1e12)
    assert line.seconds == 10


async def test_a_job_that_is_given_back_goes_to_another(stand: Bench) -> None:
    chute = await stand.publish(cords=(), jobs=TRAINING)
    job = await ask(stand.market, chute.id, "train", {})
    await issue(stand.market, MINER, chute.id, job.id)
    with pytest.raises(RefusedError, match="taken"):
        await issue(stand.market, OTHER, chute.id, job.id)
    await release(stand.market, MINER, job.id)
    assert stand.reasons.count("job_created") == 2
    with pytest.raises(RefusedError, match="given the job back") as told:
        await issue(stand.market, MINER, chute.id, job.id)
    assert told.value.answer == 403
    await issue(stand.market, OTHER, chute.id, job.id)


async def test_a_job_whose_miner_ends_its_instance_has_failed(stand: Bench) -> None:
    chute = await stand.publish(cords=(), jobs=TRAINING)
    (gpu,) = await stand.gpus(MINER, 1)
    job = await ask(stand.market, chute.id, "train", {})
    instance = await stand.running(MINER, chute, [gpu], job.id)
    assert stand.market.jobs[job.id].state is JobState.RUNNING
    await end(stand.market, MINER, chute.id, instance.id)
    assert stand.market.jobs[job.id].state is JobState.FAILED
    assert "job_deleted" in stand.reasons


async def test_what_cannot_be_asked_for(stand: Bench) -> None:
    chute = await stand.publish(jobs=TRAINING)
    with pytest.raises(RefusedError, match="offers no job"):
        await ask(stand.market, chute.id, "sleep", {})
    with pytest.raises(RefusedError, match="No GPU model"):
        await ask(stand.market, chute.id, "train", {}, excluded=("a6000",))
    with pytest.raises(RefusedError, match="No GPU model of the catalog"):
        await stand.publish("huge", min_vram_gb=1000)
    with pytest.raises(RefusedError, match="does neither"):
        await stand.publish("idle", cords=())
    with pytest.raises(RefusedError, match="no image"):
        await stand.publish("other", image="ada/none:1")
    with pytest.raises(RefusedError, match="is used by hello"):
        await remove_image(stand.market, chute.image_id)
    with pytest.raises(RefusedError, match="between 0 and 1000"):
        await set_target(stand.market, chute.id, 1001)


async def test_an_image_built_anew_names_who_uses_it(stand: Bench) -> None:
    chute = await stand.publish()
    image = await publish_image(stand.market, "ada", "base", "1.0")
    assert image.reference.startswith("ada/base:1.0-")
    assert stand.news[-1].data["chute_ids"] == [chute.id]
    await withdraw(stand.market, chute.id)
    assert stand.reasons[-1] == "chute_deleted"
    await remove_image(stand.market, image.id)
    assert stand.reasons[-1] == "image_deleted"


async def test_use_is_counted_by_the_last_hour_and_never_twice(stand: Bench) -> None:
    chute = await stand.publish(concurrency=2)
    (gpu,) = await stand.gpus(MINER, 1)
    instance = await stand.running(MINER, chute, [gpu])
    meter = Meter(stand.market)
    meter.sample()
    use = Use(
        id=instance.id, chute_id=chute.id, invocations=10, errors=1, rate_limited=2, compute_seconds=720.0
    )
    await meter.note([use])
    await meter.note([use])
    (metrics,) = meter.metrics()
    assert (metrics["total_invocations"], metrics["total_compute_time"], metrics["rate_limit_count"]) == (
        10,
        720.0,
        2,
    )
    (row,) = meter.utilization()
    assert (row["active_instance_count"], row["target_count"], row["scalable"]) == (1, 1, False)
    assert row["utilization_current"] == pytest.approx(720 / (HOUR * 2))
    for _ in range(62):
        stand.clock.advance(60)
        meter.sample()
    assert meter.metrics() == []
    with pytest.raises(RefusedError, match="no instance"):
        await meter.note([Use(id="none", chute_id=chute.id)])
