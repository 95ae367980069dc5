"""What a workload has written, and what it writes from now on."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import typer

from gpupool.core.errors import NotFoundError

if TYPE_CHECKING:
    from gpupool.contracts.control_client import ControlClient

_LOOK_SECONDS: Final = 1.0
_LINES: Final = 1000
_ANCHOR: Final = 400


def latest_output(client: "ControlClient", name: str, lines: int) -> str:
    """Return the last ``lines`` of the newest deployment that has written anything; raise NotFoundError without one."""
    workload = client.workload(name)
    for placement in workload.placements:
        with suppress(NotFoundError):
            output = client.logs(placement.id, lines)
            if output:
                return output
    raise NotFoundError(
        f"No deployment of {name} has written anything.",
        remedy=f"See what it does with `gpupool chute show {name}`.",
    )


def follow_output(client: "ControlClient", name: str, shown: str) -> None:
    """Print what comes after ``shown`` as it is written, also of a deployment that takes over; ends by Ctrl-C only."""
    while True:
        time.sleep(_LOOK_SECONDS)
        output = latest_output(client, name, _LINES)
        typer.echo(fresh_part(shown, output), nl=False)
        shown = output


def fresh_part(shown: str, output: str) -> str:
    """Return what of ``output`` follows ``shown``: two looks at the end of one growing text, or at another text."""
    anchor = shown[-_ANCHOR:]
    at = output.rfind(anchor) if anchor else -1
    return output if at < 0 else output[at + len(anchor) :]
