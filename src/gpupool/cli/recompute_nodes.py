"""``gpupool recompute nodes``: the servers behind a running proxy, seen and changed without a restart."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from gpupool.cli.output import JsonFlag, print_plain_json, print_table

if TYPE_CHECKING:
    from gpupool.recompute.proxy.admin_client import AdminClient

app = typer.Typer(help="See and change the servers behind a running proxy.", no_args_is_help=True)

PortOption = Annotated[
    int | None,
    typer.Option(
        "--port", "-p", min=0, max=65535, help="Port of the proxy [the only one here]; 0: the one without."
    ),
]
NodeArgument = Annotated[str, typer.Argument(metavar="HOST[:PORT]", help="The server; port 11989 if none.")]
WeightOption = Annotated[
    float | None, typer.Option(help="Above 0, at most 1000; 2 is given work as if twice as fast [1].")
]
SocketsOption = Annotated[
    int | None, typer.Option(min=1, max=4096, help="Connections at once; fixed, no longer learned.")
]
HistoryOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Instead, what one did, minute by minute and hour by hour.")
]


_NEGATIVE: Final = re.compile(r"-[0-9.]+")


class WeightCommand(TyperCommand):
    """A command with a number that may be mistyped as a negative one, which is no option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse a negative number in words; errors of the command line as for every command."""
        from gpupool.core.errors import InvalidInputError

        for before, given in zip(["", *args], args, strict=False):
            if _NEGATIVE.fullmatch(given) and not before.startswith("-"):
                raise InvalidInputError(
                    f"The weight is {given[:40]}; it must be above 0 and at most 1000.",
                    remedy="To give a server nothing, drain it: `gpupool recompute nodes drain HOST`.",
                )
        return super().parse_args(ctx, args)


def client_of(port: int | None) -> "AdminClient":
    """Return what talks to the proxy on ``port``; errors as for `AdminClient.of`."""
    from gpupool.recompute.proxy.admin_client import AdminClient

    return AdminClient.of(port)


@app.command("list")
def list_nodes(port: PortOption = None, history: HistoryOption = None, as_json: JsonFlag = False) -> None:
    """List servers with their sources, state, load, speed and share of the requests.

    Sources: arguments (-n), file (--nodes-file), feed (--control), command. Exit code 0, also with none usable.

    Examples:

      gpupool recompute nodes list

      gpupool recompute nodes list --port 11990 --json

      gpupool recompute nodes list --history 192.168.1.5:11989
    """
    client = client_of(port)
    if history is not None:
        show_history(client.get("/v1/nodes/history", name=history), as_json=as_json)
        return
    found = client.get("/v1/nodes")
    if as_json:
        print_plain_json(found)
        return
    rows = [
        (
            row["name"],
            " ".join(row["sources"]),
            f"{row['state']}, slow" if row["slow"] else row["state"],
            " ".join(row["kinds"]),
            f"{row['weight']:g}",
            f"{row['in_flight']}/{row['limit'] or '-'}",
            row["requests_per_second"],
            f"{row['share']:.0%}",
            row["p50_ms"],
            row["p99_ms"],
            row["failed"],
            row["why"],
        )
        for row in found["nodes"]
    ]
    rows += [
        (
            row["name"],
            " ".join(row["sources"]),
            "removed",
            *[None] * 8,
            "by command; reset or add brings it back",
        )
        for row in found["removed"]
    ]
    columns = ("NODE", "SOURCES", "STATE", "KINDS", "WEIGHT", "AT ONCE", "REQ/S", "SHARE", "P50 MS", "P99 MS")
    print_table("Nodes", (*columns, "FAILED", "WHY"), rows, "none.", below={"WHY"})


@app.command()
def add(
    node: NodeArgument,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OPTION]...",
            help="For TLS and tokens, as in a list of nodes: plain, tls, tls=CA_FILE, tls=sha256:HEX, server-name=, "
            "cert=, key=, token-file= [the proxy's own].",
        ),
    ] = None,
    weight: WeightOption = None,
    sockets: SocketsOption = None,
    kind: Annotated[
        str | None, typer.Option(metavar="frames|http", help="What it speaks [found out by asking].")
    ] = None,
    port: PortOption = None,
) -> None:
    """Add a server. It takes requests as soon as it has said what it speaks, and is there after a restart too.

    Exit code 5 where it is there already.

    Examples:

      gpupool recompute nodes add 192.168.1.7

      gpupool recompute nodes add 192.168.1.8:11990 --weight 2 --sockets 24

      gpupool recompute nodes add gpu1.farm tls=/etc/gpupool/ca.pem token-file=/etc/gpupool/token
    """
    words = [_absolute(word) for word in options or []] or None
    _change(port, "add", node, weight=weight, sockets=sockets, kind=kind, trust=words)


def _absolute(word: str) -> str:
    """Return an option with its file as seen from here: the proxy may run in another folder."""
    name, _, value = word.partition("=")
    if (
        name not in {"tls", "cert", "key", "token-file"}
        or value in {"", "system"}
        or value.startswith("sha256:")
    ):
        return word
    return f"{name}={Path(value).absolute()}"


@app.command()
def remove(node: NodeArgument, port: PortOption = None) -> None:
    """Take a server out: nothing new goes there, what it has it finishes. Also one that a source names.

    `nodes add` or `nodes reset` brings it back. Exit code 4 where there is no such server.

    Example: gpupool recompute nodes remove 192.168.1.7
    """
    _change(port, "remove", node)


@app.command()
def drain(node: NodeArgument, port: PortOption = None) -> None:
    """Give a server nothing new, and keep it in the list: before maintenance.

    Example: gpupool recompute nodes drain 192.168.1.7
    """
    _change(port, "drain", node)


@app.command()
def undrain(node: NodeArgument, port: PortOption = None) -> None:
    """Let a drained server take requests again. Exit code 5 where its file or feed drains it.

    Example: gpupool recompute nodes undrain 192.168.1.7
    """
    _change(port, "undrain", node)


@app.command(cls=WeightCommand)
def weight(
    node: NodeArgument,
    weight: Annotated[
        float | None, typer.Argument(help="Above 0, at most 1000; 2 is given work as if twice as fast.")
    ] = None,
    sockets: SocketsOption = None,
    port: PortOption = None,
) -> None:
    """Set a server's weight, its connections, or both. Speed is measured anyway: weights are for wishes beyond it.

    Examples:

      gpupool recompute nodes weight 192.168.1.7 0.5

      gpupool recompute nodes weight 192.168.1.7 --sockets 30
    """
    from gpupool.core.errors import InvalidInputError

    if weight is None and sockets is None:
        raise InvalidInputError(
            "There is nothing to set.", remedy="Give a weight, --sockets, or both; reset takes both back."
        )
    _change(port, "weight", node, weight=weight, sockets=sockets)


@app.command()
def reset(node: NodeArgument, port: PortOption = None) -> None:
    """Forget what was set by command: the server is again as its source names it.

    Example: gpupool recompute nodes reset 192.168.1.7
    """
    _change(port, "reset", node)


_DONE = {
    "add": "is added",
    "remove": "is taken out",
    "drain": "gets nothing new",
    "undrain": "takes requests again",
    "weight": "is changed",
    "reset": "is as its source names it",
}


def _change(port: int | None, action: str, node: str, **given: object) -> None:
    values = {name: value for name, value in given.items() if value is not None}
    done = client_of(port).post("/v1/nodes", {"action": action, "node": node, **values})
    row = done["node"]
    now = f" (state {row['state']}, weight {row['weight']:g})" if row else ""
    typer.echo(f"{done['name']} {_DONE[action]}{now}.")


def show_history(found: dict[str, Any], *, as_json: bool) -> None:
    """Print the minutes and hours of a client or node."""
    from datetime import UTC, datetime

    if as_json:
        print_plain_json(found)
        return
    for series, title in (("minutes", "Minutes (UTC)"), ("hours", "Hours (UTC)")):
        rows = [
            (
                datetime.fromtimestamp(point["start"], UTC).strftime("%Y-%m-%d %H:%M"),
                point["requests"],
                point["failed"],
                point["mean_ms"],
                point["worst_ms"],
            )
            for point in found[series]
        ]
        columns = ("FROM", "REQUESTS", "FAILED", "MEAN MS", "WORST MS")
        print_table(
            f"{found['name']}: {title}", columns, rows, "nothing yet; a minute is told once it is over."
        )
