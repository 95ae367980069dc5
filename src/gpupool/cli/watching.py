"""Showing something again whenever the pool has changed, until Ctrl-C."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from gpupool.contracts.control_client import ControlClient

WatchFlag = Annotated[bool, typer.Option("--watch", "-w", help="Show it again at every change until Ctrl-C.")]
_CLEAR: Final = "\x1b[2J\x1b[H"
LONGEST: Final = 5.0
"""Seconds after which it is shown again even without a change, on a terminal: times of last contact move on."""


def shown_or_watched(client: "ControlClient", show: Callable[[], None], *, watch: bool) -> None:
    """Call ``show`` once, or with ``watch`` again whenever something has happened; a terminal is cleared before."""
    seen = client.pool().last_event_seq if watch else 0
    show()
    while watch:
        news = client.events(after=seen, limit=1000, wait=LONGEST)
        seen = max([seen, *(event.seq for event in news)])
        if sys.stdout.isatty():
            typer.echo(_CLEAR, nl=False)
        elif not news:
            continue
        show()
