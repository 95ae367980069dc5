"""What the proxy answers itself: is it alive, is it ready, what stands behind it, and what it has counted."""

import json
from typing import TYPE_CHECKING, Final

import gpupool
from gpupool.recompute.proxy.answers import problem, response
from gpupool.recompute.proxy.http_exchange import QUESTION_PATHS
from gpupool.recompute.proxy.metrics import metrics_page
from gpupool.recompute.proxy.nodes import Kind

if TYPE_CHECKING:
    from gpupool.recompute.proxy.proxying import ProxyCore

PROXY_HEADER: Final = "X-Gpupool-Proxy"
"""Ids of this proxy and of those behind it: whoever finds its own id there is in a circle."""
KINDS_HEADER: Final = "X-Gpupool-Kinds"
PASSED_LIMIT: Final = 64
"""Ids told at most."""


class LocalPages:
    """Answers for paths that go to no server."""

    def __init__(self, core: "ProxyCore") -> None:
        self._core = core
        self._pages = {
            b"/healthz": self._healthz,
            b"/readyz": self._readyz,
            b"/metrics": self._metrics,
            b"/v1/server": self._server,
            b"/v1/nodes": self._nodes,
        }

    def answer(self, method: bytes, path: bytes) -> bytes:
        """Return the whole answer to a request."""
        page = self._pages.get(path)
        request_id = self._core.next_id()
        if page is None and path not in QUESTION_PATHS:
            return problem(404, "not_found", "There is nothing at this path.", request_id)
        if page is None or method not in {b"GET", b"HEAD"}:
            return problem(405, "method", "This path does not take this method.", request_id)
        return page()

    def _healthz(self) -> bytes:
        return _json(200, {"status": "ok", "instance_id": self._core.instance_id})

    def _readyz(self) -> bytes:
        """Ready: some node has said what it speaks, and the proxy is not about to stop."""
        directory = self._core.directory
        kinds = {str(kind): len(directory.of_kind(kind)) for kind in Kind}
        if self._core.draining:
            return _json(503, {"status": "draining"})
        ready = any(kinds.values())
        return _json(200 if ready else 503, {"status": "ready" if ready else "no_nodes", "nodes": kinds})

    def _server(self) -> bytes:
        core = self._core
        views = [node.server_view for node in core.directory.of_kind(Kind.HTTP) if node.server_view]
        state = "draining" if core.draining else "ready" if core.directory.nodes else "starting"
        body = {
            "instance_id": core.instance_id,
            "version": gpupool.__version__,
            "state": state,
            "k": sorted(_union(views, "k")),
            "levels": sorted(_union(views, "levels")),
            "devices": [device for view in views for device in _list(view, "devices")],
            "rates": [rate for view in views for rate in _list(view, "rates")] if len(views) == 1 else [],
            "queue": {"running": len(core.http.active), "waiting": core.http.waiting, "room": 0},
        }
        return _json(200, body, ((PROXY_HEADER, ",".join(self._passed())), (KINDS_HEADER, self._kinds())))

    def _passed(self) -> list[str]:
        behind = (name for node in self._core.directory.nodes.values() for name in sorted(node.proxies))
        return [self._core.instance_id, *dict.fromkeys(behind)][:PASSED_LIMIT]

    def _kinds(self) -> str:
        return ",".join(kind for kind in Kind if self._core.directory.of_kind(kind))

    def _nodes(self) -> bytes:
        views = {
            kind: {view.name: view for view in dispatcher.pool.view(self._core.clock())}
            for kind, dispatcher in zip(Kind, self._core.dispatchers, strict=True)
        }
        rows = []
        for node in self._core.directory.nodes.values():
            row: dict[str, object] = {
                "name": node.name,
                "kinds": sorted(node.kinds),
                "refused": node.refused,
                "trouble": node.trouble,
                "answered": node.answered,
                "failed": node.failed,
                "open_connections": len(node.open),
            }
            for kind in sorted(node.kinds):
                view = views[kind].get(node.name)
                if view is not None:
                    row[kind] = {
                        "state": view.state,
                        "reason": view.reason,
                        "weight": view.weight,
                        "outstanding": view.outstanding,
                        "limit": view.limit,
                        "latency_seconds": view.latency,
                        "p99_seconds": view.p99,
                        "slow": view.slow,
                    }
            rows.append(row)
        return _json(200, {"nodes": rows})

    def _metrics(self) -> bytes:
        text = metrics_page(self._core)
        return response(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")


def _json(status: int, body: object, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    return response(status, json.dumps(body).encode(), headers=headers)


def _list(view: dict[str, object], key: str) -> list[object]:
    found = view.get(key)
    return found if isinstance(found, list) else []


def _union(views: list[dict[str, object]], key: str) -> set[int]:
    return {value for view in views for value in _list(view, key) if isinstance(value, int)}
