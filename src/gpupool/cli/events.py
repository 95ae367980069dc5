"""``gpupool events``: what happened, in the order it was committed."""

from operator import attrgetter
from typing import Annotated

import typer

from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag


def events(
    after: Annotated[int, typer.Option(min=0, help="Show events with a higher number.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show at most so many at once.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones until Ctrl-C.")] = False,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what happened; with --json one object a line.

    Examples: `gpupool events` · `gpupool events --follow --json`
    """
    with connect(control) as client:
        while True:
            batch = client.events(after=after, limit=limit, wait=20.0 if follow else 0.0)
            for event in sorted(batch, key=attrgetter("seq")):
                if event.seq <= after:
                    # Delivery is at least once; what was shown is not shown again, and the number never falls.
                    continue
                after = event.seq
                facts = " ".join(f"{key}={value}" for key, value in event.data.items() if value is not None)
                plain = (
                    f"{event.seq:>6} {event.at:%Y-%m-%d %H:%M:%S} {event.kind:<22} {event.subject} {facts}"
                )
                typer.echo(event.model_dump_json() if as_json else plain.rstrip())
            if not follow:
                return
