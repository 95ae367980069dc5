"""What instances earn: seconds at work times their multiplier, written into the ledger hour by hour and at the end.

Time is billed from one moment to the next, each of them kept with the instance in the same change as the ledger's line:
whatever crashes, no second is paid twice and none is lost.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpupool.market.records import Earning, Instance
from gpupool.market.state import Change, Market

BILLED_EVERY: Final = 3600.0
"""Seconds after which an instance's time is written down though it goes on."""
_HOUR: Final = 3600.0


def bill(
    market: Market, change: Change, instance: Instance, *, kind: str = "compute", units: float | None = None
) -> None:
    """Write down what an instance has earned since it was last billed; for a bounty its amount in ``units``."""
    begun = instance.billed_until if instance.billed_until is not None else change.at
    seconds = max(0.0, change.at - begun) if kind == "compute" else 0.0
    earned = seconds * instance.multiplier if units is None else units
    gpu = next((market.gpus[gpu_id] for gpu_id in instance.gpu_ids if gpu_id in market.gpus), None)
    change.earned.append(
        Earning(
            at=change.at,
            kind=kind,
            hotkey=instance.hotkey,
            chute_id=instance.chute_id,
            instance_id=instance.id,
            server_id=gpu.server_id if gpu else "",
            short_ref=gpu.short_ref if gpu else "",
            gpus=len(instance.gpu_ids),
            seconds=seconds,
            units=earned,
            usd=earned * unit_usd(market),
        )
    )


def unit_usd(market: Market) -> float:
    """Return what a compute unit pays: a second of the dearest card's hourly rate."""
    return max(model.hourly_usd for model in market.catalog) / _HOUR


async def bill_due(market: Market) -> int:
    """Write down the time of every instance that is due for it; return how many were."""
    due: Sequence[Instance] = [
        instance
        for instance in market.instances.values()
        if instance.billed_until is not None and market.now - instance.billed_until >= BILLED_EVERY
    ]
    if not due:
        return 0
    async with market.change() as change:
        for seen in due:
            instance = market.instances.get(seen.id)
            if instance is not None and instance.active:
                bill(market, change, instance)
                change.put(replace(instance, billed_until=change.at))
    return len(due)
