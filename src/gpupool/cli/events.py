"""``gpupool events``: what happened, in the order it was committed."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag

if TYPE_CHECKING:
    from gpupool.contracts.control import EventView


def events(
    after: Annotated[
        int | None, typer.Option(min=0, help="Show events with a higher number; left out, the newest ones.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show at most so many at once.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones until Ctrl-C.")] = False,
    by: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="Only what this one asked for: a token's or hotkey's name."),
    ] = None,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what happened, the newest last; with --json one object a line.

    Examples: `gpupool events --limit 20` · `gpupool events --after 0` · `gpupool events --follow --json` ·
    `gpupool events --by alice`
    """
    with connect(control) as client:
        # Only the newest ones need to know how many there are.
        newest = after is None and by is None
        seen = max(0, client.pool().last_event_seq - limit) if newest else after or 0
        latest = after is None and by is not None
        if newest and seen:
            _note(f"{seen} older events are not shown; `gpupool events --after 0` begins with the first.")
        while True:
            wait = 20.0 if follow and not latest else 0.0
            batch = client.events(after=seen, limit=limit, wait=wait, by=by, latest=latest)
            latest = False
            for event in sorted(batch, key=lambda event: event.seq):
                if event.seq <= seen:
                    # Delivery is at least once; what was shown is not shown again, and the number never falls.
                    continue
                seen = event.seq
                typer.echo(event.model_dump_json() if as_json else _line(event))
            if not follow:
                break
        if after is not None and len(batch) == limit:
            _note(f"Newer events may follow; `gpupool events --after {seen}` goes on.")


def _line(event: "EventView") -> str:
    facts = " ".join(f"{key}={value}" for key, value in event.data.items() if value is not None)
    return f"{event.seq:>6} {event.at:%Y-%m-%d %H:%M:%S} {event.kind:<22} {event.subject} {facts}".rstrip()


def _note(text: str) -> None:
    from gpupool.cli.invocation import as_typed

    typer.echo(as_typed(text), err=True)
