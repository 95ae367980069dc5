"""Bounties: what a chute that nobody serves offers to whoever starts it, more the longer it waits."""

from dataclasses import replace
from typing import Any, Final

from gpupool.market.instances import bounty_amount
from gpupool.market.records import Chute
from gpupool.market.state import Market

NEWS_SECONDS: Final = 60.0
"""How often miners are told of a bounty that has grown."""


class Bounties:
    """Offers bounties, and tells of them as they grow."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self._told: dict[str, float] = {}

    async def tend(self) -> None:
        """Offer what is due, and tell what has grown."""
        market = self._market
        cold = [chute for chute in market.chutes.values() if is_cold(market, chute)]
        due = [chute for chute in cold if market.now - self._told.get(chute.id, 0.0) >= NEWS_SECONDS]
        self._told = {chute.id: self._told[chute.id] for chute in cold if chute.id in self._told}
        if not due:
            return
        async with market.change() as change:
            for seen in due:
                chute = market.chutes.get(seen.id)
                if chute is None or not is_cold(market, chute):
                    continue
                since = chute.bounty_since if chute.bounty_since is not None else change.at
                if chute.bounty_since is None:
                    change.put(replace(chute, bounty_since=since))
                self._told[chute.id] = change.at
                change.tell("bounty_change", chute_id=chute.id, bounty=int(bounty_amount(change.at - since)))


def is_cold(market: Market, chute: Chute) -> bool:
    """Tell whether a chute is wanted and nobody serves it."""
    return (
        chute.target > 0
        and not chute.job_only
        and not any(instance.active for instance in market.instances_of(chute.id))
    )


def bounty_list(market: Market) -> list[dict[str, Any]]:
    """Return the bounties that wait, as the wire has them."""
    return [
        {
            "chute_id": chute.id,
            "bounty_amount": int(bounty_amount(market.now - chute.bounty_since)),
            "seconds_elapsed": int(market.now - chute.bounty_since),
            "time_remaining": None,
            "created_at": chute.bounty_since,
        }
        for chute in market.chutes.values()
        if chute.bounty_since is not None and is_cold(market, chute)
    ]
