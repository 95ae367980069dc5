"""How commands print: tables for people, JSON for scripts, the same facts in both."""

import json
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpupool.cli.invocation import as_typed

if TYPE_CHECKING:
    from pydantic import BaseModel

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
UNKNOWN: Final = "-"
_GAP: Final = 2
PIPE_WIDTH: Final = 160
"""Where no terminal says how wide it is."""


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


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    empty: str,
    *,
    below: Collection[str] = (),
    width: int | None = None,
) -> None:
    """Print rows under a title; None shows as ``-``; without rows, say what ``empty`` says.

    No cell is ever wrapped, so that an id can be copied. The columns ``below``, which hold sentences, and the last
    ones of those that do not fit side by side, go under their row. ``width``: in characters; left out, the terminal's.
    """
    lines = [[_cell(cell) for cell in row] for row in rows]
    if not lines:
        typer.echo(as_typed(f"{title}: {empty}"))
        return
    room = width or (shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH)
    beside = fitting([n for n, name in enumerate(columns) if name not in below], columns, lines, room)
    under = [n for n in range(len(columns)) if n not in beside]
    widths = _widths(beside, columns, lines)
    typer.secho(title, bold=True)
    typer.secho(_joined((columns[n] for n in beside), widths), dim=True)
    for line in lines:
        typer.echo(_joined((line[n] for n in beside), widths))
        for n in under:
            if line[n] != UNKNOWN:
                print_wrapped(f"{columns[n].lower()}: {as_typed(line[n])}", room, indent=2)


def print_wrapped(text: str, width: int, *, indent: int = 0) -> None:
    """Print a sentence over as many lines as it needs; addresses and paths stay whole."""
    wrap = textwrap.TextWrapper(
        width=width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    typer.echo(wrap.fill(text))


def sentence_width() -> int:
    """Return the characters of a line of sentences: the terminal's, at most 100."""
    return min(100, shutil.get_terminal_size().columns)


def _cell(value: object) -> str:
    text = UNKNOWN if value is None or value == "" else str(value)
    return "".join(character if character.isprintable() else " " for character in text)


def fitting(
    candidates: list[int], columns: Sequence[str], lines: Sequence[Sequence[str]], room: int
) -> list[int]:
    """Return the columns that fit side by side in ``room`` characters: the last ones give way, and never the first."""
    beside = list(candidates)
    while len(beside) > 1 and sum(_widths(beside, columns, lines)) + _GAP * (len(beside) - 1) > room:
        beside.pop()
    return beside


def _widths(beside: Sequence[int], columns: Sequence[str], lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(cell_len(columns[n]), *(cell_len(line[n]) for line in lines)) for n in beside]


def _joined(cells: Iterable[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True))
    return (" " * _GAP).join(padded).rstrip()


def cell_len(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def age(moment: datetime, now: datetime | None = None) -> str:
    """Return how long ago ``moment`` (aware) was: ``42s``, ``3m``, ``5h``, ``2d``."""
    seconds = max(0, int(((now or datetime.now(UTC)) - moment).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
