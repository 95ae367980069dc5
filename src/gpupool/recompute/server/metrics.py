"""What the server counts, for Prometheus. One registry an instance, so that two servers in a process do not meet."""

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)


class Metrics:
    """Requests by kind and outcome, compute times by level, and what is under way."""

    def __init__(
        self,
        *,
        waiting: Callable[[], int],
        running: Callable[[], int],
        ready: Callable[[], bool],
        restarts: Callable[[], int],
    ) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "gpupool_recompute_requests",
            "Requests that ended, by kind (proof, quality) and outcome (ok, or the code of the error).",
            ["kind", "outcome"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "gpupool_recompute_compute_seconds",
            "Time in a worker of requests that were answered, by kind and level.",
            ["kind", "level"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        self._registry.register(_Present(waiting, running, ready, restarts))

    def answered(self, kind: str, level: int, seconds: float) -> None:
        """Note the compute time of an answer."""
        self._seconds.labels(kind, str(level)).observe(seconds)

    def ended(self, kind: str, outcome: str) -> None:
        """Note the end of a request."""
        self._requests.labels(kind, outcome).inc()

    def text(self) -> bytes:
        """Return everything in Prometheus' text form."""
        return generate_latest(self._registry)


class _Present(Collector):
    """Gauges that are asked for rather than kept."""

    def __init__(
        self,
        waiting: Callable[[], int],
        running: Callable[[], int],
        ready: Callable[[], bool],
        restarts: Callable[[], int],
    ) -> None:
        self._waiting, self._running, self._ready, self._restarts = waiting, running, ready, restarts

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as they are now."""
        name = "gpupool_recompute"
        yield GaugeMetricFamily(f"{name}_waiting", "Requests in the queue.", value=self._waiting())
        yield GaugeMetricFamily(f"{name}_running", "Requests that are worked on.", value=self._running())
        yield GaugeMetricFamily(f"{name}_ready", "1 while requests are taken.", value=float(self._ready()))
        yield CounterMetricFamily(
            f"{name}_worker_losses", "Worker processes that died or were killed.", value=self._restarts()
        )
