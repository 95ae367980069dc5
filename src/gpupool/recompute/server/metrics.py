"""What the server counts, for Prometheus. One registry an instance, so that two servers in a process do not meet."""

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpupool.recompute.server.staffing import WorkerPlan
from gpupool.recompute.server.work import WorkQueue

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)


class Metrics:
    """Requests by kind and outcome, compute times by level and engine, and what is under way."""

    def __init__(
        self, queue: WorkQueue, *, ready: Callable[[], bool], solutions: WorkQueue | None = None
    ) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "gpupool_recompute_requests",
            "Requests that ended, by kind (proof, quality, solve) and outcome (ok, or the code of the error).",
            ["kind", "outcome"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "gpupool_recompute_compute_seconds",
            "Time in a worker of requests that were answered, by kind, level (or strength) and engine.",
            ["kind", "level", "engine"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        self._registry.register(_Present(queue, ready, solutions))

    def answered(self, kind: str, level: int, seconds: float, worker: WorkerPlan) -> None:
        """Note the compute time of an answer."""
        self._seconds.labels(kind, str(level), worker.engine).observe(seconds)

    def ended(self, kind: str, outcome: str) -> None:
        """Note the end of a request."""
        self._requests.labels(kind, outcome).inc()

    def text(self) -> bytes:
        """Return everything in Prometheus' text form."""
        return generate_latest(self._registry)


class _Present(Collector):
    """What is asked for rather than kept."""

    def __init__(self, queue: WorkQueue, ready: Callable[[], bool], solutions: WorkQueue | None) -> None:
        self._queue, self._ready, self._solutions = queue, ready, solutions

    def collect(self) -> Iterable[Metric]:
        """Return everything as it is now."""
        name, queue = "gpupool_recompute", self._queue
        yield GaugeMetricFamily(f"{name}_waiting", "Requests in the queue.", value=queue.waiting)
        yield GaugeMetricFamily(f"{name}_running", "Requests that are worked on.", value=queue.running)
        yield GaugeMetricFamily(f"{name}_ready", "1 while requests are taken.", value=float(self._ready()))
        yield CounterMetricFamily(
            f"{name}_worker_losses",
            "Worker processes that died or were ended.",
            value=sum(place.deaths for place in queue.crew.places),
        )
        yield CounterMetricFamily(
            f"{name}_known_answers", "Requests that were answered from memory.", value=queue.known.hits
        )
        yield CounterMetricFamily(
            f"{name}_joined", "Requests that waited for the computation of an equal one.", value=queue.joined
        )
        yield from self._devices()
        yield from self._of_solutions()

    def _of_solutions(self) -> Iterable[Metric]:
        name, queue = "gpupool_recompute_solutions", self._solutions
        if queue is not None:
            yield GaugeMetricFamily(f"{name}_waiting", "Solutions in the queue.", value=queue.waiting)
            yield GaugeMetricFamily(f"{name}_running", "Solutions that are worked on.", value=queue.running)

    def _devices(self) -> Iterable[Metric]:
        labels = ["device", "name", "engine"]
        ready = GaugeMetricFamily(
            "gpupool_recompute_device_ready", "1 while a device takes questions, by number.", labels=labels
        )
        running = GaugeMetricFamily(
            "gpupool_recompute_device_running", "Questions that a device works on, by number.", labels=labels
        )
        for number, place in enumerate(self._queue.crew.places):
            named = [str(number), place.plan.name, place.plan.engine]
            ready.add_metric(named, float(place.state == "ready"))
            running.add_metric(named, len(place.tickets))
        return ready, running
