"""What the gateway counts, for Prometheus. One registry an instance, so that two gateways in a process do not meet."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Requests by model, their times, and what is under way."""

    def __init__(self, outstanding: Callable[[], dict[str, int]], feed_is_up: Callable[[], bool]) -> None:
        self._registry = CollectorRegistry()
        requests = Counter(
            "gpupool_gateway_requests",
            "Requests that ended, by model and status class (499: the client left).",
            ["model", "status"],
            registry=self._registry,
        )
        seconds = Histogram(
            "gpupool_gateway_request_seconds",
            "From a request's head to the last byte of its answer.",
            ["model"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        head_seconds = Histogram(
            "gpupool_gateway_upstream_head_seconds",
            "From a request's head to the head of the upstream's answer.",
            ["model"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        # Looking a label up costs more than counting; models are few.
        self._requests_of = lru_cache(maxsize=4096)(requests.labels)
        self._seconds_of = lru_cache(maxsize=1024)(seconds.labels)
        self._head_of = lru_cache(maxsize=1024)(head_seconds.labels)
        ProcessCollector(registry=self._registry)
        self._registry.register(_Present(outstanding, feed_is_up))

    def head(self, model: str, seconds: float) -> None:
        """Note that an upstream has begun to answer."""
        self._head_of(model).observe(seconds)

    def ended(self, model: str, status: int, seconds: float) -> None:
        """Note a request's end; ``status`` 499 means that the client left."""
        self._requests_of(model, "499" if status == 499 else f"{status // 100}xx").inc()
        self._seconds_of(model).observe(seconds)

    def text(self) -> bytes:
        """Return everything in Prometheus' text form."""
        return generate_latest(self._registry)


class _Present(Collector):
    """Gauges that are asked for rather than kept."""

    def __init__(self, outstanding: Callable[[], dict[str, int]], feed_is_up: Callable[[], bool]) -> None:
        self._outstanding = outstanding
        self._feed_is_up = feed_is_up

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as they are now."""
        under_way = GaugeMetricFamily(
            "gpupool_gateway_outstanding", "Requests under way at upstreams.", labels=["model"]
        )
        for model, count in self._outstanding().items():
            under_way.add_metric([model], count)
        yield under_way
        yield GaugeMetricFamily(
            "gpupool_gateway_feed_up",
            "1 while the endpoints feed can be read.",
            value=float(self._feed_is_up()),
        )
