"""The life of an instance: it claims its launch, proves that it runs on its GPUs, serves, earns, and ends.

Source: chutes.md section 2.4. The instance itself speaks here, with its token; everything about its miner comes from the
launch. The proof is behind a port, since what proves a GPU is a matter of its own.
"""

import uuid
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from gpupool.market.billing import bill
from gpupool.market.launching import Issuer, abandon, put_back, usable_gpus
from gpupool.market.records import Chute, Gpu, Instance, JobState, Launch, LaunchState
from gpupool.market.refusing import RefusedError
from gpupool.market.sealing import opened
from gpupool.market.state import Change, Market

BOUNTY_PER_SECOND: Final = 3.0
BOUNTY_BASE: Final = 100.0
BOUNTY_MOST: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What an instance is asked to prove."""

    seed: int
    iterations: int
    uuid: str
    """The GPU that opens the ciphertext."""
    ciphertext: str
    """Base64 of the 16-byte IV and what follows it."""


class LaunchProof(Protocol):
    """Proves that an instance has the GPUs that it claims."""

    def seconds(self, gpus: list[Gpu]) -> float:
        """Return how long an answer may take on these GPUs."""
        ...

    async def challenge(self, launch: Launch, gpus: list[Gpu], symmetric_key: str) -> Challenge:
        """Return what the instance must answer."""
        ...

    async def check(self, launch: Launch, gpus: list[Gpu], answer: dict[str, Any]) -> str | None:
        """Return why an answer is refused; None where it proves what it should."""
        ...


async def claim(
    market: Market, issuer: Issuer, proof: LaunchProof, token: str, said: dict[str, Any], key: str
) -> tuple[Launch, Challenge]:
    """Take an instance's first word: its GPUs, host and ports; ``key``: 32 hexadecimal digits made for it.

    Raises RefusedError: 401 for a token that is forged, old or used, 403/409 for GPUs that it cannot have.
    """
    async with market.change() as change:
        launch = _launch(market, issuer, token, LaunchState.ISSUED, change.at)
        chute = market.chutes.get(launch.chute_id)
        gpus: list[Gpu] = []
        outdated = chute is None or chute.version != launch.version
        if chute is None or outdated:
            abandon(market, change, launch, "the chute has changed or gone")
        else:
            launch, gpus = _claimed(market, launch, chute, said, key, change.at)
            change.put(launch)
    if outdated:
        raise RefusedError(409, "The chute has changed or gone since the token was issued.")
    return launch, await proof.challenge(launch, gpus, key)


def _claimed(
    market: Market, launch: Launch, chute: Chute, said: dict[str, Any], key: str, now: float
) -> tuple[Launch, list[Gpu]]:
    ids = [str(gpu.get("uuid", "")) for gpu in said["gpus"]]
    gpus = usable_gpus(market, launch.hotkey, ids, chute)
    if any(gpu.host != said["host"] for gpu in gpus):
        raise RefusedError(403, "The instance is not at the host of its GPUs.")
    claim = {"host": said["host"], "ports": said["port_mappings"], "gpu_ids": ids}
    state = LaunchState.CLAIMED
    return replace(launch, state=state, symmetric_key=key, claimed_at=now, claim=claim), gpus


async def verify(
    market: Market, issuer: Issuer, proof: LaunchProof, token: str, answer: dict[str, Any]
) -> Instance:
    """Take an instance's proof; RefusedError where it is none, or comes too late."""
    launch = _launch(market, issuer, token, LaunchState.CLAIMED, market.now)
    gpus = [market.gpus[gpu_id] for gpu_id in launch.claim["gpu_ids"] if gpu_id in market.gpus]
    said = opened(launch.symmetric_key, str(answer.get("iv", "")), str(answer.get("response", "")))
    fault = None if said == expected_words(launch) else "it does not hold the key that it was given"
    if fault is None:
        fault = await proof.check(launch, gpus, answer)
    async with market.change() as change:
        launch = _launch(market, issuer, token, LaunchState.CLAIMED, change.at)
        chute = market.chutes.get(launch.chute_id)
        limit = proof.seconds(gpus)
        if change.at - (launch.claimed_at or 0.0) > limit:
            fault = f"the proof came after more than {limit:.0f} s"
        if len(gpus) != len(launch.claim["gpu_ids"]) or chute is None:
            fault = "its GPUs or its chute are gone"
        if fault is not None or chute is None:
            abandon(market, change, launch, fault or "its chute is gone")
            instance = None
        else:
            instance = _begin(market, change, launch, chute)
    if instance is None:
        raise RefusedError(403, f"The proof is refused: {fault}.")
    return instance


def _begin(market: Market, change: Change, launch: Launch, chute: Chute) -> Instance:
    ports = [dict(mapping) for mapping in launch.claim["ports"]]
    instance = Instance(
        id=str(uuid.uuid4()),
        chute_id=chute.id,
        version=launch.version,
        hotkey=launch.hotkey,
        config_id=launch.id,
        job_id=launch.job_id,
        host=launch.claim["host"],
        port=int(ports[0]["external_port"]),
        port_mappings=tuple(ports),
        gpu_ids=tuple(launch.claim["gpu_ids"]),
        multiplier=chute.multiplier,
        symmetric_key=launch.symmetric_key,
        created_at=launch.claimed_at or change.at,
        verified_at=change.at,
    )
    change.put(instance)
    change.put(replace(launch, state=LaunchState.VERIFIED, symmetric_key=""))
    facts = _facts(instance)
    change.tell(
        "instance_created",
        instance.hotkey,
        **facts,
        gpu_count=len(instance.gpu_ids),
        gpu_model_name=market.gpus[instance.gpu_ids[0]].short_ref,
    )
    change.tell("instance_verified", instance.hotkey, instance_id=instance.id, miner_hotkey=instance.hotkey)
    return instance


async def activate(market: Market, instance_id: str, token: str, issuer: Issuer) -> Instance:
    """Let an instance serve; it earns from now on, and a bounty if it is the first. Saying it twice changes nothing."""
    launch_id = issuer.launch_id(token, market.now)
    async with market.change() as change:
        instance = market.instances.get(instance_id)
        if instance is None or instance.config_id != launch_id:
            raise RefusedError(404, "There is no such instance.")
        if instance.active:
            return instance
        active = replace(instance, activated_at=change.at, billed_until=change.at)
        change.put(active)
        chute = market.chutes.get(instance.chute_id)
        if chute is not None and chute.bounty_since is not None and instance.job_id is None:
            amount = bounty_amount(change.at - chute.bounty_since)
            change.put(replace(chute, bounty_since=None))
            bill(market, change, active, kind="bounty", units=amount)
        job = market.jobs.get(instance.job_id or "")
        if job is not None and job.state is JobState.CLAIMED:
            change.put(replace(job, state=JobState.RUNNING, instance_id=instance.id))
        change.tell("instance_activated", instance.hotkey, **_facts(active))
    return active


async def end(market: Market, hotkey: str, chute_id: str, instance_id: str) -> None:
    """Let go of an instance at its miner's word; what it earned stays, a job that it ran has failed."""
    async with market.change() as change:
        instance = market.instances.get(instance_id)
        if instance is None or instance.hotkey != hotkey or instance.chute_id != chute_id:
            raise RefusedError(404, "There is no such instance.")
        finish(market, change, instance)


def finish(market: Market, change: Change, instance: Instance) -> None:
    """End an instance within a change: bill its last seconds, settle its job, tell its miner."""
    if instance.active:
        bill(market, change, instance)
    use = market.uses.get(instance.id)
    if use is not None:
        change.drop(use)
    change.drop(instance)
    job = market.jobs.get(instance.job_id or "")
    if job is not None and job.state is JobState.RUNNING:
        change.put(
            replace(
                job,
                state=JobState.FAILED,
                finished_at=change.at,
                result={"error": "the miner ended its instance"},
            )
        )
        change.tell("job_deleted", instance.hotkey, instance_id=instance.id, job_id=job.id)
    elif job is not None and job.state is JobState.CLAIMED:
        put_back(change, job, market.chutes.get(job.chute_id))
    change.tell("instance_deleted", instance.hotkey, **_facts(instance))


def expected_words(launch: Launch) -> str:
    """Return what an instance must say under its key."""
    return f"secret is {launch.id} {launch.seed}"


def bounty_amount(waiting_seconds: float) -> float:
    """Return what a bounty has grown to; source: chutes.md section 2.2, min(3 x seconds + 100, 86400)."""
    return min(BOUNTY_PER_SECOND * waiting_seconds + BOUNTY_BASE, BOUNTY_MOST)


def _launch(market: Market, issuer: Issuer, token: str, state: LaunchState, now: float) -> Launch:
    launch = market.launches.get(issuer.launch_id(token, now))
    if launch is None:
        raise RefusedError(404, "There is no such launch.")
    if launch.state is not state:
        raise RefusedError(401, f"The launch is {launch.state.value} already.")
    return launch


def _facts(instance: Instance) -> dict[str, Any]:
    return {
        "chute_id": instance.chute_id,
        "instance_id": instance.id,
        "miner_hotkey": instance.hotkey,
        "config_id": instance.config_id,
    }


async def forget_gpu(market: Market, hotkey: str, gpu_id: str) -> None:
    """Let go of a miner's GPU, and of the instance that runs on it."""
    async with market.change() as change:
        gpu = market.gpus.get(gpu_id)
        if gpu is None or gpu.hotkey != hotkey:
            raise RefusedError(404, f"The GPU {gpu_id[:64]} was not found.")
        for instance in market.instances.values():
            if gpu_id in instance.gpu_ids:
                finish(market, change, instance)
        change.drop(gpu)
