"""``gpupool recompute top``: a running proxy at a glance, drawn anew every second, or once for scripts."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpupool.cli.output import PIPE_WIDTH, JsonFlag, fitting, print_plain_json
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
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    if once:
        console.print(screen(client.get("/v1/top"), client.record.public_port, console.width))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                client, found = _look(client)
                live.update(screen(found, client.record.public_port, console.width), refresh=True)
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


def screen(found: dict[str, Any], port: int, width: int) -> "RenderableType":
    """Return what is shown of an answer of the admin interface on a terminal of ``width`` characters."""
    from rich.console import Group
    from rich.text import Text

    proxy = found["proxy"]
    where = f"on port {port}" if port else "at its Unix socket"
    head = (
        f"Proxy {where}, {proxy['state']} for {_span(proxy['uptime_seconds'])}:"
        f" {proxy['requests_per_second']:.1f} req/s, {proxy['under_way']} under way,"
        f" {proxy['waiting']} waiting for a server, {proxy['connections']} connections,"
        f" {proxy['requests']} requests, {proxy['failed']} failed"
    )
    alerts = [
        Text(f"{row['alert']}: {row['subject']} ({row['why']})", style="red") for row in found["alerts"][:5]
    ]
    return Group(Text(head, style="bold"), *alerts, *_nodes(found["nodes"], width), *_clients(found, width))


def _nodes(rows: list[dict[str, Any]], width: int) -> "list[RenderableType]":
    columns = ("SERVER", "STATE", "KIND", "AT ONCE", "REQ/S", "SHARE", "P50 MS", "P99 MS", "FAILED")
    lines = [
        (
            row["name"],
            f"{row['state']}{', slow' if row['slow'] else ''}",
            " ".join(row["kinds"]) or "?",
            f"{row['in_flight']}/{row['limit'] or '-'}",
            f"{row['requests_per_second']:.1f}",
            f"{row['share']:.0%}",
            _number(row["p50_ms"]),
            _number(row["p99_ms"]),
            str(row["failed"]),
        )
        for row in rows
    ]
    colours = [_COLOURS.get(row["state"], "") for row in rows]
    return _table("Servers", columns, 3, lines, colours, [row["why"] for row in rows], width)


def _clients(found: dict[str, Any], width: int) -> "list[RenderableType]":
    rows = found["clients"][:_BUSIEST]
    title = f"Busiest clients ({found['clients_known']} known, {found['clients_silent']} silent)"
    columns = ("CLIENT", "REQ/S", "REQUESTS", "FAILED", "MEAN MS", "CONNECTIONS")
    lines = [
        (
            row["address"],
            f"{row['requests_per_second']:.1f}",
            str(row["requests"]),
            str(row["failed"]),
            _number(row["mean_ms"]),
            str(row["connections"]),
        )
        for row in rows
    ]
    colours = ["red" if row["silent"] else "" for row in rows]
    return _table(title, columns, 1, lines, colours, [_losses(row.get("shim")) for row in rows], width)


def _losses(shim: dict[str, Any] | None) -> str:
    """Return what a stock harvester with our library has lost, in words; empty where nothing."""
    if shim is None or not (shim["qualities"] or shim["proofs"] or shim["fallbacks"]):
        return ""
    return (
        f"lost at the harvester: {shim['qualities']} qualities, {shim['proofs']} proofs (last: {shim['why']});"
        f" answered by its bundled library: {shim['fallbacks']}"
    )


def _table(
    title: str,
    columns: Sequence[str],
    texts: int,
    lines: Sequence[Sequence[str]],
    colours: Sequence[str],
    whys: Sequence[str],
    width: int,
) -> "list[RenderableType]":
    """Return a table, and below it, a line for each row, what found no room and why something is as it is.

    The first ``texts`` columns hold words, the others numbers.
    """
    from rich.table import Table
    from rich.text import Text

    beside = fitting(list(range(len(columns))), columns, lines, width) if lines else range(len(columns))
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, expand=False)
    for n in beside:
        table.add_column(columns[n], justify="left" if n < texts else "right", no_wrap=True)
    below: list[RenderableType] = []
    for line, colour, why in zip(lines, colours, whys, strict=True):
        table.add_row(*(Text(line[n], style=colour if n == texts // 2 else "") for n in beside))
        rest = [f"{columns[n].lower()} {line[n]}" for n in range(len(beside), len(columns))]
        if rest or why:
            below.append(Text(f"  {line[0]}: {', '.join([*rest, why] if why else rest)}", style=colour))
    return [table, *below]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _span(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours // 24}d {hours % 24}h" if hours >= 24 else f"{hours}:{rest // 60:02}:{rest % 60:02}"
