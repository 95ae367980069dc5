"""What can be asked of a running proxy, and told to it, by the commands of this machine.

Everything read is at hand; everything changed is on disk before it is acknowledged. A proxy that is about to stop
takes no changes: its successor may have read the file already.
"""

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from gpupool.core.errors import ConflictError, InvalidInputError, NotFoundError
from gpupool.recompute.addresses import format_address, parse_address
from gpupool.recompute.proxy.orders import Orders
from gpupool.recompute.proxy.report import Report
from gpupool.recompute.proxy.watching import is_own_address

if TYPE_CHECKING:
    from gpupool.recompute.proxy.alerting import Alerting
    from gpupool.recompute.proxy.proxying import ProxyCore

ACTIONS: Final = ("add", "remove", "drain", "undrain", "weight", "reset")
_HISTORY: Final = re.compile(r"/v1/(clients|nodes)/history")
_MOST_TOP_CLIENTS: Final = 50


class Admin:
    """Answers the paths of the admin interface."""

    def __init__(
        self, core: "ProxyCore", report: Report, orders: Orders, alerting: "Alerting", port: int
    ) -> None:
        """``port`` is the one that clients use."""
        self._core = core
        self._port = port
        self._report = report
        self._orders = orders
        self._alerting = alerting
        self._pages: dict[tuple[str, str], Callable[[dict[str, str], Any], Awaitable[object]]] = {
            ("GET", "/v1/nodes"): self._nodes,
            ("POST", "/v1/nodes"): self._change,
            ("GET", "/v1/top"): self._top,
            ("GET", "/v1/clients"): self._clients,
            ("GET", "/v1/alerts"): self._alerts,
            ("POST", "/v1/alerts/test"): self._test_alerts,
        }

    async def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> object:
        """Return what a request asks for; raise errors of `core.errors`."""
        if method == "GET" and (wanted := _HISTORY.fullmatch(path)):
            return self._history(wanted[1], query.get("name", ""))
        page = self._pages.get((method, path))
        if page is None:
            raise NotFoundError("The admin interface has nothing at this path.")
        return await page(query, body)

    async def _nodes(self, query: dict[str, str], body: Any) -> object:
        return {
            "proxy": self._report.summary(),
            "nodes": self._report.nodes(),
            "removed": [
                {"name": name, "sources": list(self._core.directory.sources(name))}
                for name in self._orders.removed()
            ],
        }

    async def _change(self, query: dict[str, str], body: Any) -> object:
        if not isinstance(body, dict) or not isinstance(body.get("node"), str):
            raise InvalidInputError("A change names an action and a node.")
        if self._core.draining:
            raise ConflictError(
                "This proxy is about to stop.", remedy="Give the command again once its successor runs."
            )
        action = body.get("action")
        if action not in ACTIONS:
            raise InvalidInputError(f"An action is one of {', '.join(ACTIONS)}.")
        if action == "add":
            await self._refuse_itself(body["node"])
        given = {name: value for name, value in body.items() if name not in {"action", "node"}}
        name = await self._orders.change(action, body["node"], given)
        rows = [row for row in self._report.nodes() if row["name"] == name]
        return {"name": name, "node": rows[0] if rows else None}

    async def _refuse_itself(self, node: str) -> None:
        address = parse_address(node)
        if address[1] == self._port and await is_own_address(address[0], self._core.settings.host):
            raise InvalidInputError(
                f"The node {format_address(address)} is this proxy itself.",
                remedy="Name the real address and port of a server.",
            )

    async def _top(self, query: dict[str, str], body: Any) -> object:
        rows = sorted(self._report.clients(), key=lambda row: -float(row["requests_per_second"]))
        return {
            "proxy": self._report.summary(),
            "nodes": self._report.nodes(),
            "clients": rows[:_MOST_TOP_CLIENTS],
            "clients_known": len(rows),
            "clients_silent": sum(row["silent"] for row in rows),
            "alerts": self._alerting.firing(),
        }

    async def _clients(self, query: dict[str, str], body: Any) -> object:
        return {
            "proxy": self._report.summary(),
            "clients": self._report.clients(),
            "forgotten": self._core.tallies.forgotten,
        }

    def _history(self, what: str, name: str) -> object:
        found = self._report.history(what, name)
        if found is None:
            raise NotFoundError(
                f"Nothing is known of {name[:100]!r}.", remedy=f"See `gpupool recompute {what}` for names."
            )
        return found

    async def _alerts(self, query: dict[str, str], body: Any) -> object:
        return {
            "hooks": self._alerting.hook_names(),
            "firing": self._alerting.firing(),
            "deliveries": self._alerting.deliveries(),
        }

    async def _test_alerts(self, query: dict[str, str], body: Any) -> object:
        if not self._alerting.hook_names():
            raise ConflictError(
                "This proxy has no alert hook.",
                remedy="Start it with --alert-command PROGRAM or --alert-url URL.",
            )
        return {"deliveries": await self._alerting.test()}
