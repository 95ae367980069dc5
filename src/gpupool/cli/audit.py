"""``gpupool audit``: who asked for what, and when; what the pool did by itself is left out."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag

if TYPE_CHECKING:
    from gpupool.contracts.control import EventView


def audit(
    by: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="Only of this one: a token's or hotkey's name, or NAME@ADDRESS."),
    ] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="ID", help="Only about this thing, by its id.")
    ] = None,
    after: Annotated[
        int | None, typer.Option(min=0, help="Show events with a higher number; left out, the newest ones.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show at most so many.")] = 100,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show who asked for what, the newest last. The holder of the operator token is called operator.

    Examples: `gpupool audit` · `gpupool audit --by alice --limit 20` · `gpupool audit --after 0 --json`
    """
    from gpupool.cli.output import print_json, print_table

    with connect(control) as client:
        found = client.events(
            after=after or 0, limit=limit, subject=subject, by=by, asked=True, latest=after is None
        )
    if as_json:
        print_json(found)
        return
    rows = [
        (e.seq, f"{e.at:%Y-%m-%d %H:%M:%S}", e.data.get("by"), e.kind, e.subject, _facts(e)) for e in found
    ]
    columns = ("NUMBER", "WHEN (UTC)", "WHO", "WHAT", "SUBJECT", "FACTS")
    print_table("Audit", columns, rows, "nobody has asked for anything like this", below=("FACTS",))


def _facts(event: "EventView") -> str:
    return " ".join(
        f"{key}={value}" for key, value in event.data.items() if value is not None and key != "by"
    )
