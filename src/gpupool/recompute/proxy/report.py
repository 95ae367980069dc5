"""What there is to know about nodes and clients, as plain rows: for the admin interface, `top`, and alerts.

A row of a node joins what its source wants, what the balancer has learned, and what was counted.
"""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import gpupool
from gpupool.balancing import NodeView
from gpupool.recompute.proxy.history import History, Point
from gpupool.recompute.proxy.memory import seen_at
from gpupool.recompute.proxy.nodes import Kind, Node
from gpupool.recompute.proxy.tallies import ClientTally, Tally

if TYPE_CHECKING:
    from gpupool.recompute.proxy.proxying import ProxyCore

Row = dict[str, Any]
UNUSABLE: Final = frozenset({"ejected", "quarantined", "refused", "unreachable"})
"""States of a node that gets no ordinary traffic through a fault."""


class Report:
    """Rows about one proxy."""

    def __init__(self, core: "ProxyCore", wall: Callable[[], float] = time.time) -> None:
        self._core = core
        self._wall = wall

    def summary(self) -> Row:
        """Return what concerns the whole proxy; times in seconds."""
        core = self._core
        kinds = core.tallies.kinds
        return {
            "instance_id": core.instance_id,
            "version": gpupool.__version__,
            "state": "draining" if core.draining else "running",
            "uptime_seconds": round(core.clock() - core.began, 1),
            "connections": len(core.clients),
            "under_way": sum(len(dispatcher.active) for dispatcher in core.dispatchers),
            "waiting": sum(dispatcher.waiting for dispatcher in core.dispatchers),
            "turned_away": core.turned_away_count,
            "requests": sum(tally.requests for tally in kinds.values()),
            "failed": sum(tally.failed for tally in kinds.values()),
            "requests_per_second": round(sum(tally.rate for tally in kinds.values()), 2),
        }

    def nodes(self) -> list[Row]:
        """Return a row for every node, in the order of the sources."""
        core = self._core
        views = [
            (dispatcher.kind, {view.name: view for view in dispatcher.pool.view(core.clock())})
            for dispatcher in core.dispatchers
        ]
        rates = sum(tally.rate for name, tally in core.tallies.nodes.items() if name in core.directory.nodes)
        rows = []
        for node in core.directory.nodes.values():
            mine = {kind: view[node.name] for kind, view in views if node.name in view and kind in node.kinds}
            rows.append(self._node(node, mine, rates))
        return rows

    def _node(self, node: Node, views: dict[Kind, NodeView], rates: float) -> Row:
        tally = self._core.tallies.nodes.get(node.name) or Tally()
        busiest = max(views.values(), key=lambda view: sum(view.counts.values()), default=None)
        limits = [view.limit for view in views.values() if view.limit is not None]
        return {
            "name": node.name,
            "sources": list(self._core.directory.sources(node.name)),
            "kinds": sorted(node.kinds),
            "state": _state(node, views.values()),
            "why": node.refused or node.trouble or next((v.reason for v in views.values() if v.reason), ""),
            "weight": node.wish.weight,
            "draining": node.wish.draining,
            "in_flight": sum(view.outstanding for view in views.values()),
            "limit": sum(limits) if limits else node.wish.sockets,
            "connections": len(node.open),
            "requests_per_second": round(tally.rate, 2),
            "share": round(tally.rate / rates, 4) if rates > 0.005 else 0.0,
            "latency_ms": _ms(busiest.latency if busiest else None),
            "p50_ms": _ms(busiest.p50 if busiest else None),
            "p99_ms": _ms(busiest.p99 if busiest else None),
            "slow": any(view.slow for view in views.values()),
            "answered": node.answered,
            "failed": node.failed,
        }

    def clients(self) -> list[Row]:
        """Return a row for every client remembered, the one heard last first."""
        now, wall, core = self._core.clock(), self._wall(), self._core
        connected: dict[str, int] = {}
        for client in core.clients:
            connected[client.peer] = connected.get(client.peer, 0) + 1
        rows = [
            self._client(address, tally, now, wall) | {"connections": connected.get(address, 0)}
            for address, tally in core.tallies.clients.items()
        ]
        return sorted(rows, key=lambda row: -float(row["last"]))

    def _client(self, address: str, tally: ClientTally, now: float, wall: float) -> Row:
        floor = self._core.tallies.silent_floor
        quiet, limit = now - max(tally.last, self._core.began), tally.silent_after(floor)
        protocols = (("frames", tally.frames), ("http", tally.http))
        answered = tally.requests - tally.failed
        return {
            "address": address,
            "protocols": [name for name, count in protocols if count],
            "first": round(tally.first, 3),
            "last": round(seen_at(tally, wall, now), 3),
            "requests": tally.requests,
            "failed": tally.failed,
            "left": tally.left,
            "refused": tally.refused,
            "requests_per_second": round(tally.rate, 2),
            "mean_ms": round(tally.total_ms / answered, 1) if answered and tally.total_ms else None,
            "regular": tally.regular,
            "usual_pause_seconds": round(tally.pause, 1) if tally.pause else None,
            "silent_after_seconds": round(limit, 1),
            "silent": tally.regular and quiet > limit,
            "shim": None if tally.shim is None else tally.shim.row(),
        }

    def history(self, what: str, name: str) -> Row | None:
        """Return minutes and hours of a client or node; None where nothing is known of it."""
        tallies = self._core.tallies
        found: Tally | None = tallies.clients.get(name) if what == "clients" else tallies.nodes.get(name)
        return None if found is None else {"name": name} | history_rows(found.history)


def history_rows(history: History) -> Row:
    """Return both series as rows."""
    return {
        "minutes": [_point(point) for point in history.minutes.points()],
        "hours": [_point(point) for point in history.hours.points()],
    }


def _point(point: Point) -> Row:
    return {
        "start": point.start,
        "requests": point.requests,
        "failed": point.failed,
        "mean_ms": round(point.mean_ms, 1),
        "worst_ms": point.worst_ms,
    }


def _state(node: Node, views: Iterable[NodeView]) -> str:
    """Return one word: the best state of its kinds, as a node that serves one is of use."""
    if node.refused is not None:
        return "refused"
    if not node.kinds:
        return "unreachable" if node.trouble is not None else "unknown"
    states = {str(view.state) for view in views}
    order = ("live", "starting", "draining", "ejected", "quarantined", "leaving")
    return next((state for state in order if state in states), "unknown")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
