"""How commands print: tables for people, JSON for scripts, the same facts in both."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
UNKNOWN: Final = "-"


def print_json(value: "BaseModel | Sequence[BaseModel]") -> None:
    """Print a message, or a list of them, as JSON on standard output."""
    if isinstance(value, Sequence):
        plain: object = [item.model_dump(mode="json") for item in value]
    else:
        plain = value.model_dump(mode="json")
    print_plain_json(plain)


def print_plain_json(value: object) -> None:
    """Print what JSON can say on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Print rows under a title; None shows as ``-``; without rows, say what ``empty`` says."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = [[UNKNOWN if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    console = Console(width=None if sys.stdout.isatty() else 160)
    if not lines:
        console.print(Text(f"{title}: {empty}"))
        return
    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=None, pad_edge=False, header_style="dim"
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    console.print(table)


def age(moment: datetime, now: datetime | None = None) -> str:
    """Return how long ago ``moment`` (aware) was: ``42s``, ``3m``, ``5h``, ``2d``."""
    seconds = max(0, int(((now or datetime.now(UTC)) - moment).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
