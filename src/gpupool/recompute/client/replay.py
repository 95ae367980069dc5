"""A farm's load without a farm: the shipped proof looked up again and again, at a rate and with a concurrency.

Time is measured from the moment a look-up was due, so that a pool that falls behind cannot look fast by being asked
less often.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpupool.core.errors import GpupoolError
from gpupool.recompute.client.asynchronous import AsyncClient
from gpupool.recompute.demo import known_proof, proof_request, quality_request


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked."""

    count: int
    """Look-ups in all."""
    concurrency: int = 16
    """Look-ups at one time; a harvester with 16 threads has up to 16."""
    rate: float | None = None
    """Look-ups a second; None: each as soon as another one ends."""
    proof_share: float = 0.04
    """Full proofs among them (0..1); the others are qualities."""
    level: int = 3

    def is_proof(self, number: int) -> bool:
        """Tell whether look-up ``number`` (0..) is a full proof; they are spread evenly."""
        return math.floor((number + 1) * self.proof_share) > math.floor(number * self.proof_share)


@dataclass(slots=True)
class Result:
    """What came of it so far."""

    seconds: list[float] = field(default_factory=list)
    """Of each look-up that was answered."""
    by_host: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    """How many look-ups failed, by what was said."""
    rescued: int = 0
    """Answered, although some host failed on the way."""
    wall_s: float = 0.0

    @property
    def failed(self) -> int:
        """How many look-ups got no answer."""
        return self.faults.total()

    def percentile_ms(self, percent: float) -> float | None:
        """Return the time that ``percent`` (0..100) of the answers did not exceed; None without any."""
        return percentile_ms(self.seconds, percent)


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """Return the smallest time (ms) that at least ``percent`` (0..100) of ``seconds`` do not exceed."""
    if not seconds:
        return None
    rank = max(1, math.ceil(len(seconds) * percent / 100))
    return round(sorted(seconds)[rank - 1] * 1000, 2)


async def replay(client: AsyncClient, load: Load, result: Result, advance: Callable[[], None]) -> None:
    """Send the load and fill ``result`` on the way, so that it tells the truth when this is cancelled, too."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    numbers = iter(range(load.count))

    async def worker() -> None:
        for number in numbers:
            due = loop.time() if load.rate is None else began + number / load.rate
            await asyncio.sleep(due - loop.time())
            await _one(client, load, number, due, result)
            result.wall_s = loop.time() - began
            advance()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(load.concurrency, load.count)):
            group.create_task(worker())


async def _one(client: AsyncClient, load: Load, number: int, due: float, result: Result) -> None:
    known = known_proof()
    try:
        if load.is_proof(number):
            answer = await client.recover_proof(proof_request(known, load.level))
        else:
            answer = await client.look_up_quality(quality_request(known, load.level))
    except GpupoolError as error:
        result.faults[error.message] += 1
        return
    result.seconds.append(asyncio.get_running_loop().time() - due)
    result.by_host[answer.host] += 1
    result.rescued += bool(answer.troubles)
