"""How chutes are used: sums that gateways report, the last hour of them, and how many instances are wanted.

Source: chutes.md section 2.2, ``/miner/metrics/`` and ``/chutes/utilization``. The hour is measured from samples in memory:
after a restart it begins anew.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from gpupool.market.billing import unit_usd
from gpupool.market.records import Chute, Use
from gpupool.market.refusing import RefusedError
from gpupool.market.state import Market

HOUR: Final = 3600.0
SAMPLE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Sums:
    """What a chute has seen since the market began to count."""

    invocations: int = 0
    errors: int = 0
    rate_limited: int = 0
    compute_seconds: float = 0.0

    def since(self, earlier: "Sums") -> "Sums":
        """Return what has come since ``earlier``."""
        return Sums(
            self.invocations - earlier.invocations,
            self.errors - earlier.errors,
            self.rate_limited - earlier.rate_limited,
            self.compute_seconds - earlier.compute_seconds,
        )

    def plus(self, use: Use, before: Use | None) -> "Sums":
        """Return the sums with what an instance has done since ``before``."""
        old = before or Use(id=use.id, chute_id=use.chute_id)
        return Sums(
            self.invocations + use.invocations - old.invocations,
            self.errors + use.errors - old.errors,
            self.rate_limited + use.rate_limited - old.rate_limited,
            self.compute_seconds + use.compute_seconds - old.compute_seconds,
        )


class Meter:
    """Counts use by chute."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self._sums: dict[str, Sums] = {}
        self._samples: deque[tuple[float, dict[str, Sums]]] = deque()

    async def note(self, uses: list[Use]) -> None:
        """Take sums of instances, each since its beginning; what comes twice, or late, counts once."""
        async with self._market.change() as change:
            grown = {}
            for use in uses:
                instance = self._market.instances.get(use.id)
                if instance is None or instance.chute_id != use.chute_id:
                    raise RefusedError(404, f"There is no instance {use.id[:64]} of this chute.")
                before = self._market.uses.get(use.id)
                if before is None or use.compute_seconds >= before.compute_seconds:
                    grown[use.id] = (use, before)
                    change.put(use)
        for use, before in grown.values():
            sums = self._sums.get(use.chute_id, Sums())
            self._sums[use.chute_id] = sums.plus(use, before)

    def sample(self) -> None:
        """Remember the sums of this moment; called about once a minute."""
        now = self._market.now
        self._samples.append((now, dict(self._sums)))
        while len(self._samples) > 1 and now - self._samples[1][0] >= HOUR:
            self._samples.popleft()

    def last_hour(self, chute_id: str) -> Sums:
        """Return what a chute has seen in the last hour, or since the market started."""
        earlier = self._samples[0][1] if self._samples else {}
        return self._sums.get(chute_id, Sums()).since(earlier.get(chute_id, Sums()))

    def metrics(self) -> list[dict[str, Any]]:
        """Return the last hour's use of every chute that was used, as the wire has it."""
        now, items = self._market.now, []
        for chute in self._market.chutes.values():
            seen = self.last_hour(chute.id)
            if seen == Sums():
                continue
            per_second = chute.multiplier * unit_usd(self._market)
            items.append(
                {
                    "chute_id": chute.id,
                    "start_date": now - HOUR,
                    "end_date": now,
                    "compute_multiplier": chute.multiplier,
                    "total_invocations": seen.invocations,
                    "total_compute_time": seen.compute_seconds,
                    "error_count": seen.errors,
                    "rate_limit_count": seen.rate_limited,
                    "instance_count": len(self._market.instances_of(chute.id)),
                    "per_second_price_usd": per_second,
                    "total_usage_usd": seen.compute_seconds * per_second,
                }
            )
        return items

    def utilization(self) -> list[dict[str, Any]]:
        """Return how many instances each chute has and wants, as the wire has it."""
        return [self._utilization(chute) for chute in self._market.chutes.values() if not chute.job_only]

    def _utilization(self, chute: Chute) -> dict[str, Any]:
        instances = self._market.instances_of(chute.id)
        active = sum(instance.active for instance in instances)
        total = len(instances) + len(self._market.open_launches_of(chute.id))
        seen = self.last_hour(chute.id)
        busy = min(1.0, seen.compute_seconds / (HOUR * active * chute.concurrency)) if active else 0.0
        room = max(0, chute.target - total)
        return {
            "chute_id": chute.id,
            "name": chute.name,
            "timestamp": self._market.now,
            "utilization_current": busy,
            "utilization_1h": busy,
            "avg_busy_ratio": busy,
            "total_requests_1h": seen.invocations + seen.rate_limited,
            "completed_requests_1h": seen.invocations - seen.errors,
            "rate_limited_requests_1h": seen.rate_limited,
            "rate_limit_ratio_1h": seen.rate_limited / max(1, seen.invocations + seen.rate_limited),
            "total_invocations": seen.invocations,
            "total_rate_limit_errors": seen.rate_limited,
            "instance_count": len(instances),
            "total_instance_count": total,
            "active_instance_count": active,
            "target_count": chute.target,
            "scalable": room > 0,
            "scale_allowance": room,
            "update_in_progress": any(instance.version != chute.version for instance in instances),
        }
