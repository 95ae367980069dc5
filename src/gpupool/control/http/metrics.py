"""What control measures of itself and of the pool, for Prometheus."""

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from starlette.types import Scope

from gpupool.control.snapshot import Snapshot
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import LIVE_STATES

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)


class Metrics:
    """The metrics of one control process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._requests = Counter(
            "gpupool_control_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "gpupool_control_request_seconds",
            "Time to answer, long polls and streams included.",
            ("route",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.open_requests = Gauge(
            "gpupool_control_open_requests",
            "Requests being answered now, long polls and streams included.",
            registry=self.registry,
        )
        self._nodes = Gauge("gpupool_nodes", "Nodes by state.", ("state",), registry=self.registry)
        self._placements = Gauge(
            "gpupool_placements", "Live placements by state.", ("state",), registry=self.registry
        )
        self._wanted = Gauge("gpupool_instances_wanted", "Instances wanted.", registry=self.registry)
        self._seq = Gauge("gpupool_last_event_seq", "Number of the newest event.", registry=self.registry)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count one answered request under its route, so that labels stay few."""
        route = getattr(scope.get("route"), "path", "none")
        self._requests.labels(scope["method"], route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def render(self, snapshot: Snapshot) -> bytes:
        """Return everything in Prometheus' text format."""
        nodes = Tally(node.state for node in snapshot.members())
        for node_state in NodeState:
            self._nodes.labels(node_state.value).set(nodes[node_state])
        placements = Tally(placement.state for placement in snapshot.live)
        for state in LIVE_STATES:
            self._placements.labels(state.value).set(placements[state])
        self._wanted.set(sum(workload.wanted for workload in snapshot.wanted_workloads()))
        self._seq.set(snapshot.seq)
        return generate_latest(self.registry)
