"""What the front counts, for Prometheus."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpupool.balancing import Outcome

_SECONDS: Final = (0.1, 0.2, 0.5, 1, 2, 3, 5, 8, 12, 16, 20, 25, 28)


class Counters:
    """Questions by outcome, their times by strength, tries by worker, and what is there now."""

    def __init__(self, present: Mapping[str, tuple[str, Callable[[], int]]]) -> None:
        """``present``: gauges by name, each with its help and where it is read."""
        self._registry = CollectorRegistry()
        self._questions = Counter(
            "gpupool_solver_front_requests",
            "Partial proofs of farmers that ended, by outcome (ok, known, or the code of the error).",
            ["outcome"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "gpupool_solver_front_seconds",
            "Time from a partial proof to its answer, by strength.",
            ["strength"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._tries = Counter(
            "gpupool_solver_front_tries",
            "Questions to workers, by worker and outcome.",
            ["worker", "outcome"],
            registry=self._registry,
        )
        self._refused = Counter(
            "gpupool_solver_front_refused",
            "Connections and messages that were refused, by reason.",
            ["reason"],
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        self._registry.register(_Present(present))

    def ended(self, outcome: str, strength: int, seconds: float) -> None:
        """Note how a farmer's question ended."""
        self._questions.labels(outcome).inc()
        if outcome in {"ok", "known"}:
            self._seconds.labels(str(strength)).observe(seconds)

    def tried(self, worker: str, outcome: Outcome) -> None:
        """Note how a try at a worker ended."""
        self._tries.labels(worker, str(outcome)).inc()

    def refused(self, reason: str) -> None:
        """Note a connection or message that was refused."""
        self._refused.labels(reason).inc()

    def text(self) -> bytes:
        """Return everything in Prometheus' text form."""
        return generate_latest(self._registry)


class _Present(Collector):
    def __init__(self, present: Mapping[str, tuple[str, Callable[[], int]]]) -> None:
        self._present = present

    def collect(self) -> Iterable[Metric]:
        for name, (told, read) in self._present.items():
            yield GaugeMetricFamily(f"gpupool_solver_front_{name}", told, value=read())
