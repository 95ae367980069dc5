"""Who makes room where all places for clients are taken: nobody who waits for an answer, and no newcomer before them.

Whoever holds many connections without using them (a fault, or somebody who means harm) must not keep harvesters out.
Most of those who leave are therefore of the address with the most connections, and there the ones that have rested,
or taken over their request, for longest.
"""

from collections.abc import Iterable
from typing import Final

from gpupool.recompute.proxy.clients import Client

AT_ONCE: Final = 64
"""Places that are freed at one time: finding out whose takes about a millisecond."""


def who_leaves(clients: Iterable[Client], most: int = AT_ONCE) -> list[Client]:
    """Return at most ``most`` of those to whom no answer is owed, who matters least first."""
    resting = sorted((client for client in clients if not client.busy), key=lambda client: -client.since)
    places: dict[str, int] = {}
    ranked = []
    for client in resting:
        place = places[client.peer] = places.get(client.peer, 0) + 1
        ranked.append((-place, client.since, client))
    ranked.sort(key=lambda entry: entry[:2])
    return [client for _, _, client in ranked[:most]]
