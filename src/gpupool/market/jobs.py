"""Jobs: single runs that somebody asks for, which miners race for and report back.

Source: chutes.md sections 2.2, 2.4 and 2.5.
"""

import uuid
from dataclasses import replace
from typing import Any, Final

from gpupool.market.instances import finish
from gpupool.market.launching import Issuer, announce_job, put_back
from gpupool.market.records import Job, JobState, LaunchState
from gpupool.market.refusing import RefusedError
from gpupool.market.state import Market

DISK_GB: Final = 10


async def ask(
    market: Market,
    chute_id: str,
    method: str,
    arguments: dict[str, Any],
    *,
    disk_gb: int = DISK_GB,
    excluded: tuple[str, ...] = (),
) -> Job:
    """Have a job of a chute run once."""
    async with market.change() as change:
        chute = market.chutes.get(chute_id)
        if chute is None:
            raise RefusedError(404, "There is no such chute.")
        if method not in {kind.name for kind in chute.jobs}:
            raise RefusedError(400, f"{chute.name} offers no job {method!r:.100}.")
        if set(chute.supported_gpus) <= set(excluded):
            raise RefusedError(400, "No GPU model that the chute runs on is left.")
        job = Job(
            id=str(uuid.uuid4()),
            chute_id=chute_id,
            version=chute.version,
            method=method,
            arguments=arguments,
            disk_gb=disk_gb,
            excluded=excluded,
            created_at=change.at,
        )
        change.put(job)
        announce_job(change, job, chute)
    return job


async def release(market: Market, hotkey: str, job_id: str) -> None:
    """Take a job back from the miner that has claimed it; others may run it."""
    async with market.change() as change:
        job = market.jobs.get(job_id)
        if job is None or job.hotkey != hotkey or job.state is not JobState.CLAIMED:
            raise RefusedError(404, "There is no such job of this miner's that could be given back.")
        for launch in market.launches.values():
            if launch.job_id == job_id and launch.state.open:
                change.put(replace(launch, state=LaunchState.FAILED, fault="given back", symmetric_key=""))
        for instance in market.instances.values():
            if instance.job_id == job_id:
                change.drop(instance)
        put_back(change, job, market.chutes.get(job.chute_id))


async def report(market: Market, issuer: Issuer, token: str, job_id: str, result: dict[str, Any]) -> Job:
    """Take what the instance that runs a job says of its end; saying it again changes nothing."""
    launch_id = issuer.launch_id(token, 0.0)
    async with market.change() as change:
        job = market.jobs.get(job_id)
        launch = market.launches.get(launch_id)
        if job is None or launch is None or launch.job_id != job_id:
            raise RefusedError(404, "There is no such job.")
        if job.state.over:
            return job
        if job.state is not JobState.RUNNING:
            raise RefusedError(409, f"The job is {job.state.value}.")
        state = JobState.FAILED if result.get("error") else JobState.DONE
        ended = replace(job, state=state, result=result, finished_at=change.at)
        instance = market.instances.get(job.instance_id or "")
        if instance is not None:
            finish(market, change, instance)
            change.tell("job_deleted", instance.hotkey, instance_id=instance.id, job_id=job.id)
        change.put(ended)
    return ended
