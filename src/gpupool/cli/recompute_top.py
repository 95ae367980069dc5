"""``gpupool recompute top``: a running proxy at a glance, drawn anew every second, or once for scripts."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpupool.cli.output import JsonFlag, print_plain_json
from gpupool.cli.recompute_nodes import PortOption, client_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpupool.recompute.proxy.admin_client import AdminClient

_BUSIEST: Final = 10
_GAP_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.3
_COLOURS: Final = {
    "live": "green", "starting": "yellow", "draining": "cyan", "unknown": "yellow", "ejected": "red",
    "quarantined": "red", "refused": "red", "unreachable": "red",
}  # fmt: skip


def top(
    port: PortOption = None,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, max=60, help="How often it is drawn anew.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Watch a running proxy: each server's state, load, speed, failures and share, and the busiest clients.

    Ends with Ctrl-C. --json implies --once. Exit code 8 where no proxy runs here.

    Examples:

      gpupool recompute top

      gpupool recompute top --once --json | jq '.nodes[] | select(.state != "live")'
    """
    client = client_of(port)
    if as_json:
        print_plain_json(client.get("/v1/top"))
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    if once:
        console.print(screen(client.get("/v1/top"), client.record.public_port))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                client, found = _look(client)
                live.update(screen(found, client.record.public_port), refresh=True)
                time.sleep(every)
        except KeyboardInterrupt:
            return


def _look(client: "AdminClient") -> "tuple[AdminClient, dict[str, Any]]":
    """Return what is to be shown, and who told it: a proxy that is restarted has another token, and a short gap."""
    from gpupool.core.errors import UnauthorizedError, UnavailableError

    port, limit = client.record.public_port, time.monotonic() + _GAP_SECONDS
    while True:
        try:
            return client, client.get("/v1/top")
        except (UnavailableError, UnauthorizedError):
            if time.monotonic() > limit:
                raise
        time.sleep(_PAUSE_SECONDS)
        with suppress(UnavailableError):
            client = client_of(port)


def screen(found: dict[str, Any], port: int) -> "RenderableType":
    """Return what is shown of an answer of the admin interface."""
    from rich.console import Group
    from rich.text import Text

    proxy = found["proxy"]
    head = (
        f"Proxy on port {port}, {proxy['state']} for {_span(proxy['uptime_seconds'])}:"
        f" {proxy['requests_per_second']:.1f} req/s, {proxy['under_way']} under way,"
        f" {proxy['waiting']} waiting for a server, {proxy['connections']} connections,"
        f" {proxy['requests']} requests, {proxy['failed']} failed"
    )
    alerts = [
        Text(f"{row['alert']}: {row['subject']} ({row['why']})", style="red") for row in found["alerts"][:5]
    ]
    return Group(Text(head, style="bold"), *alerts, _nodes(found["nodes"]), _clients(found))


def _nodes(rows: list[dict[str, Any]]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Servers", title_justify="left", box=None, pad_edge=False, expand=False)
    for name in ("SERVER", "STATE", "KIND"):
        table.add_column(name, no_wrap=True)
    for name in ("AT ONCE", "REQ/S", "SHARE", "P50 MS", "P99 MS", "FAILED"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("TROUBLE")
    for row in rows:
        state = f"{row['state']}{', slow' if row['slow'] else ''}"
        table.add_row(
            Text(row["name"]),
            Text(state, style=_COLOURS.get(row["state"], "")),
            Text(" ".join(row["kinds"]) or "?"),
            f"{row['in_flight']}/{row['limit'] or '-'}",
            f"{row['requests_per_second']:.1f}",
            f"{row['share']:.0%}",
            _number(row["p50_ms"]),
            _number(row["p99_ms"]),
            str(row["failed"]),
            Text(row["why"]),
        )
    return table


def _clients(found: dict[str, Any]) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    title = f"Busiest clients ({found['clients_known']} known, {found['clients_silent']} silent)"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, expand=False)
    table.add_column("CLIENT", no_wrap=True)
    for name in ("REQ/S", "REQUESTS", "FAILED", "MEAN MS", "CONNECTIONS"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found["clients"][:_BUSIEST]:
        table.add_row(
            Text(row["address"], style="red" if row["silent"] else ""),
            f"{row['requests_per_second']:.1f}",
            str(row["requests"]),
            str(row["failed"]),
            _number(row["mean_ms"]),
            str(row["connections"]),
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _span(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours // 24}d {hours % 24}h" if hours >= 24 else f"{hours}:{rest // 60:02}:{rest % 60:02}"
