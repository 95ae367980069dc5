"""What ends by itself: launches that nothing came of, and the records of what is long over."""

from typing import Final

from gpupool.market.instances import LaunchProof
from gpupool.market.launching import CLAIM_SECONDS, abandon
from gpupool.market.records import Launch, LaunchState
from gpupool.market.state import Market

KEPT_SECONDS: Final = 24 * 3600.0
"""How long launches and jobs that are over can still be asked about."""


async def expire(market: Market, proof: LaunchProof) -> None:
    """End launches whose time is over, and let go of old records."""
    late = [launch for launch in market.launches.values() if _is_late(market, launch, proof)]
    old = [
        launch
        for launch in market.launches.values()
        if not launch.state.open
        and market.now - launch.issued_at > KEPT_SECONDS
        and not _used(market, launch)
    ]
    finished = [
        job
        for job in market.jobs.values()
        if job.finished_at is not None and market.now - job.finished_at > KEPT_SECONDS
    ]
    if not late and not old and not finished:
        return
    async with market.change() as change:
        for seen in late:
            launch = market.launches.get(seen.id)
            if launch is not None and launch.state.open:
                abandon(market, change, launch, "nothing came of it in time")
        for over in old:
            change.drop(over)
        for job in finished:
            change.drop(job)


def _is_late(market: Market, launch: Launch, proof: LaunchProof) -> bool:
    if launch.state is LaunchState.ISSUED:
        return market.now - launch.issued_at > CLAIM_SECONDS
    gpus = [market.gpus[gpu_id] for gpu_id in launch.claim.get("gpu_ids", ()) if gpu_id in market.gpus]
    claimed = launch.claimed_at or 0.0
    return launch.state is LaunchState.CLAIMED and market.now - claimed > proof.seconds(gpus)


def _used(market: Market, launch: Launch) -> bool:
    return any(instance.config_id == launch.id for instance in market.instances.values())
