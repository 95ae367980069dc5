"""The page of metrics, in the text format that Prometheus and its like read.

It is on the port of the clients, as everything that watches the pool expects, so no client's address stands there:
they are counted, and listed only by the admin interface. Every family is described in docs/reference/proxy-metrics.md.
"""

import asyncio
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from gpupool.balancing import NodeView
from gpupool.recompute.proxy.nodes import Node
from gpupool.recompute.proxy.tallies import BOUNDS_MS, Tally

if TYPE_CHECKING:
    from gpupool.recompute.proxy.proxying import ProxyCore

PREFIX: Final = "gpupool_proxy_"
FAMILIES: Final = {
    "requests_total": ("counter", "Requests that ended, by protocol and result."),
    "request_seconds": ("histogram", "Time from a whole request to its good answer, by protocol."),
    "under_way": ("gauge", "Requests under way."),
    "waiting": ("gauge", "Requests under way for which there is no node at the moment."),
    "attempts_total": ("counter", "Questions put to nodes: first ones, retries and hedges."),
    "retries_total": ("counter", "Questions put to another node after a failure or silence."),
    "hedges_total": (
        "counter",
        "Questions put to a second node because the first was slower than nearly all.",
    ),
    "clients": ("gauge", "Client connections."),
    "clients_known": ("gauge", "Client addresses that are remembered."),
    "clients_silent": ("gauge", "Clients that asked regularly and do not any more."),
    "clients_turned_away_total": ("counter", "Clients beyond the limit of connections."),
    "requests_refused_total": ("counter", "Requests of a protocol that no node of this proxy speaks."),
    "shim_lost_total": (
        "counter",
        "Look-ups that stock harvesters say got no answer, by kind (quality, proof).",
    ),
    "shim_fallbacks_total": ("counter", "Look-ups that their bundled library answered in the pool's place."),
    "log_lines_dropped_total": ("counter", "Request lines that were not written."),
    "uptime_seconds": ("gauge", "Seconds since this process began."),
    "tasks": ("gauge", "Jobs of the event loop; grows with connections being made, not with requests."),
    "nodes": ("gauge", "Nodes, by protocol."),
    "node_answered_total": ("counter", "Requests a node has answered."),
    "node_failed_total": ("counter", "Attempts that a node failed."),
    "node_connections": ("gauge", "Open connections to a node."),
    "node_up": ("gauge", "0 while a node is in trouble."),
    "node_state": ("gauge", "1 for the state of a node in a protocol."),
    "node_attempts_total": ("counter", "How attempts at a node ended, by protocol and outcome."),
    "node_in_flight": ("gauge", "Requests under way at a node."),
    "node_limit": ("gauge", "Most requests at once at a node, as set or learned."),
    "node_weight": ("gauge", "Weight of a node."),
    "node_p50_seconds": ("gauge", "Median latency of a node lately."),
    "node_p99_seconds": ("gauge", "99th percentile of a node's latency lately."),
    "node_slow": ("gauge", "1 while a node is three times slower than it usually is."),
    "node_request_seconds": ("histogram", "Time of requests that a node answered, waiting included."),
}


class _Page:
    """Samples, family by family."""

    def __init__(self) -> None:
        self._samples: dict[str, list[str]] = {}

    def add(
        self, family: str, value: float, labels: Mapping[str, str] | None = None, suffix: str = ""
    ) -> None:
        inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in (labels or {}).items())
        name = f"{PREFIX}{family}{suffix}"
        self._samples.setdefault(family, []).append(
            f"{name}{{{inner}}} {value:.12g}" if inner else f"{name} {value:.12g}"
        )

    def histogram(self, family: str, tally: Tally, labels: Mapping[str, str]) -> None:
        """Add the latencies of good answers."""
        counts = list(accumulate(tally.buckets))
        for bound, count in zip(BOUNDS_MS, counts, strict=False):
            self.add(family, count, {**labels, "le": f"{bound / 1000:g}"}, "_bucket")
        self.add(family, counts[-1], {**labels, "le": "+Inf"}, "_bucket")
        self.add(family, tally.total_ms / 1000, labels, "_sum")
        self.add(family, counts[-1], labels, "_count")

    def text(self) -> str:
        """Return the page."""
        lines: list[str] = []
        for family, (kind, words) in FAMILIES.items():
            lines += [f"# HELP {PREFIX}{family} {words}", f"# TYPE {PREFIX}{family} {kind}"]
            lines += self._samples.get(family, [])
        return "\n".join(lines) + "\n"


def metrics_page(core: "ProxyCore") -> str:
    """Return the whole page for the present moment."""
    page, now = _Page(), core.clock()
    _whole(page, core, now)
    for dispatcher in core.dispatchers:
        kind = str(dispatcher.kind)
        for result, number in sorted(dispatcher.results.items()):
            page.add("requests_total", number, {"kind": kind, "result": result})
        page.add("under_way", len(dispatcher.active), {"kind": kind})
        page.add("waiting", dispatcher.waiting, {"kind": kind})
        page.add("nodes", len(core.directory.of_kind(dispatcher.kind)), {"kind": kind})
        asked = core.tallies.kinds.get(kind)
        attempts, hedges = core.tallies.attempts.get(kind, 0), dispatcher.pool.hedges.taken
        page.add("attempts_total", attempts, {"kind": kind})
        page.add("hedges_total", hedges, {"kind": kind})
        page.add("retries_total", core.tallies.retries(kind, hedges), {"kind": kind})
        if asked is not None:
            page.histogram("request_seconds", asked, {"kind": kind})
        known = [view for view in dispatcher.pool.view(now) if view.name in core.directory.nodes]
        _views(page, known, kind)
    _nodes(page, core.directory.nodes.values(), core.tallies.nodes)
    return page.text()


def _whole(page: _Page, core: "ProxyCore", now: float) -> None:
    tallies = core.tallies
    page.add("clients", len(core.clients))
    page.add("clients_known", len(tallies.clients))
    page.add("clients_silent", len(tallies.silent(now, core.began)))
    page.add("clients_turned_away_total", core.turned_away_count)
    page.add("requests_refused_total", tallies.refused_count)
    page.add("shim_lost_total", tallies.shim_losses["qualities"], {"kind": "quality"})
    page.add("shim_lost_total", tallies.shim_losses["proofs"], {"kind": "proof"})
    page.add("shim_fallbacks_total", tallies.shim_losses["fallbacks"])
    page.add("log_lines_dropped_total", core.request_log.dropped)
    page.add("uptime_seconds", round(now - core.began, 3))
    page.add("tasks", len(asyncio.all_tasks()))


def _views(page: _Page, views: Iterable[NodeView], kind: str) -> None:
    for view in views:
        labels = {"node": view.name, "kind": kind}
        page.add("node_state", 1, {**labels, "state": str(view.state)})
        for outcome, number in view.counts.items():
            page.add("node_attempts_total", number, {**labels, "outcome": str(outcome)})
        page.add("node_in_flight", view.outstanding, labels)
        if view.limit is not None:
            page.add("node_limit", view.limit, labels)
        page.add("node_weight", view.weight, labels)
        if view.p50 is not None and view.p99 is not None:
            page.add("node_p50_seconds", view.p50, labels)
            page.add("node_p99_seconds", view.p99, labels)
        page.add("node_slow", int(view.slow), labels)


def _nodes(page: _Page, nodes: Iterable[Node], tallies: Mapping[str, Tally]) -> None:
    for node in nodes:
        labels = {"node": node.name}
        page.add("node_answered_total", node.answered, labels)
        page.add("node_failed_total", node.failed, labels)
        page.add("node_connections", len(node.open), labels)
        up = node.trouble is None and node.refused is None and bool(node.kinds)
        page.add("node_up", int(up), labels)
        if node.name in tallies:
            page.histogram("node_request_seconds", tallies[node.name], labels)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
