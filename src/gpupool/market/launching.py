"""Leave to start an instance: who gets it, for which chute, and how many at a time.

Source: chutes.md section 2.4, capacity rules. A token is a signed statement (JWT, HS256) that names the launch and where
the instance reports; miners pass it on unread.
"""

import secrets
import uuid
from dataclasses import replace
from typing import Any, Final

import jwt

from gpupool.market.records import Chute, Gpu, GpuState, Job, JobState, Launch, LaunchState
from gpupool.market.refusing import RefusedError
from gpupool.market.registering import SEED_BITS
from gpupool.market.state import Change, Market

TOKEN_SECONDS: Final = 7200.0
CLAIM_SECONDS: Final = 3600.0
"""How long an instance may take to be loaded before it says its first word; later its place goes to another."""
MOST_RACERS: Final = 15
"""Launches of one chute under way at once."""
COLD_EXTRA: Final = 2
"""A chute that nobody serves may be raced for by so many more than are wanted."""
LAST_PLACES: Final = 2
_ALGORITHM: Final = "HS256"
_ISSUER: Final = "chutes"


class Issuer:
    """Makes and reads tokens of one market."""

    def __init__(self, secret: str, url: str) -> None:
        """``secret``: known to this market only; ``url``: where instances reach it."""
        self._secret, self._url = secret, url.rstrip("/")

    def token(self, launch: Launch) -> str:
        """Return the token of a launch."""
        claims: dict[str, Any] = {
            "exp": int(launch.expires_at),
            "iat": int(launch.issued_at),
            "sub": launch.id,
            "url": f"{self._url}/instances/launch_config/{launch.id}",
            "env_key": launch.env_key,
            "iss": _ISSUER,
        }
        if launch.job_id is not None:
            claims["job_id"] = launch.job_id
        return jwt.encode(claims, self._secret, algorithm=_ALGORITHM)

    def launch_id(self, token: str, now: float) -> str:
        """Return which launch a token is of; RefusedError for one that is forged or too old at ``now``."""
        try:
            claims = jwt.decode(
                token,
                self._secret,
                algorithms=[_ALGORITHM],
                issuer=_ISSUER,
                options={"require": ["exp", "sub"], "verify_exp": False, "verify_iat": False},
            )
        except jwt.PyJWTError as error:
            raise RefusedError(401, "This is no launch token of this market.") from error
        if claims["exp"] <= now:
            raise RefusedError(401, "The launch token has expired.")
        return str(claims["sub"])


async def issue(market: Market, hotkey: str, chute_id: str, job_id: str | None = None) -> Launch:
    """Give a miner leave to start one instance, or to run a job.

    Raises RefusedError: 404 for what does not exist, 423 where there is no room, 403 for a job that is not for it.
    """
    async with market.change() as change:
        chute = market.chutes.get(chute_id)
        if chute is None:
            raise RefusedError(404, "There is no such chute.")
        if job_id is None:
            _check_room(market, hotkey, chute)
        else:
            _claim_job(market, change, hotkey, chute, job_id)
        launch = Launch(
            id=str(uuid.uuid4()),
            chute_id=chute.id,
            version=chute.version,
            hotkey=hotkey,
            job_id=job_id,
            env_key=secrets.token_hex(16),
            seed=secrets.randbits(SEED_BITS),
            issued_at=change.at,
            expires_at=change.at + TOKEN_SECONDS,
        )
        change.put(launch)
    return launch


def _check_room(market: Market, hotkey: str, chute: Chute) -> None:
    if chute.job_only:
        raise RefusedError(404, "This chute runs jobs only.")
    instances = market.instances_of(chute.id)
    current = [instance for instance in instances if instance.version == chute.version]
    launches = market.open_launches_of(chute.id)
    if len(launches) >= MOST_RACERS:
        raise RefusedError(423, f"{len(launches)} instances of this chute are being started already.")
    total = len(current) + len(launches)
    if not any(instance.active for instance in current):
        if chute.target and total < chute.target + COLD_EXTRA:
            return
        raise RefusedError(423, "Enough instances of this chute are being started.")
    if total >= chute.target:
        raise RefusedError(423, f"The chute has the {chute.target} instances that are wanted.")
    own = all(instance.hotkey == hotkey for instance in current)
    others = {gpu.hotkey for gpu in market.gpus.values() if gpu.state is GpuState.VERIFIED} - {hotkey}
    if own and others and chute.target - total <= LAST_PLACES and chute.target > LAST_PLACES:
        raise RefusedError(423, "The last places are for other miners.")


def _claim_job(market: Market, change: Change, hotkey: str, chute: Chute, job_id: str) -> None:
    job = market.jobs.get(job_id)
    if job is None or job.chute_id != chute.id:
        raise RefusedError(404, "There is no such job.")
    if hotkey in job.tried:
        raise RefusedError(403, "This miner has given the job back.")
    if job.state is not JobState.WAITING:
        raise RefusedError(423, "The job is taken.")
    change.put(replace(job, state=JobState.CLAIMED, hotkey=hotkey))


def abandon(market: Market, change: Change, launch: Launch, fault: str) -> None:
    """Let go of a launch within a change."""
    change.put(replace(launch, state=LaunchState.FAILED, fault=fault, symmetric_key=""))
    job = market.jobs.get(launch.job_id or "")
    if job is not None and job.state is JobState.CLAIMED and job.hotkey == launch.hotkey:
        put_back(change, job, market.chutes.get(job.chute_id))


def put_back(change: Change, job: Job, chute: Chute | None) -> None:
    """Let others have a job."""
    tried = job.tried if job.hotkey is None else (*job.tried, job.hotkey)
    change.put(replace(job, state=JobState.WAITING, hotkey=None, instance_id=None, tried=tried))
    if chute is not None:
        announce_job(change, job, chute)


def announce_job(change: Change, job: Job, chute: Chute) -> None:
    """Tell every miner of a job that waits."""
    change.tell(
        "job_created",
        job_id=job.id,
        method=job.method,
        chute_id=job.chute_id,
        image_id=chute.image_id,
        gpu_count=chute.gpu_count,
        compute_multiplier=chute.multiplier,
        exclude=list(job.excluded),
        disk_gb=job.disk_gb,
    )


def usable_gpus(market: Market, hotkey: str, ids: list[str], chute: Chute) -> list[Gpu]:
    """Return the GPUs that an instance says it has; RefusedError for those that it cannot have."""
    if len(ids) != chute.gpu_count or len(set(ids)) != len(ids):
        raise RefusedError(400, f"The chute needs exactly {chute.gpu_count} different GPUs.")
    gpus = []
    for gpu_id in ids:
        gpu = market.gpus.get(gpu_id)
        if gpu is None or gpu.hotkey != hotkey:
            raise RefusedError(403, f"The GPU {gpu_id[:64]} is not registered by this miner.")
        if gpu.state is not GpuState.VERIFIED:
            raise RefusedError(403, f"The GPU {gpu_id} is not verified.")
        if gpu.short_ref not in chute.supported_gpus:
            raise RefusedError(403, f"The chute does not run on a {gpu.short_ref}.")
        if any(gpu_id in instance.gpu_ids for instance in market.instances.values()):
            raise RefusedError(409, f"The GPU {gpu_id} is bound to another instance.")
        if any(
            gpu_id in launch.claim.get("gpu_ids", ()) and launch.state is LaunchState.CLAIMED
            for launch in market.launches.values()
        ):
            raise RefusedError(409, f"The GPU {gpu_id} is bound to another launch.")
        gpus.append(gpu)
    if len({gpu.server_id for gpu in gpus}) != 1:
        raise RefusedError(400, "All GPUs of an instance must be in one server.")
    return gpus
