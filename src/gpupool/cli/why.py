"""``gpupool why``: what control has recorded, and decides now, about an app, a node or a GPU."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpupool.cli.completing import chute_names, node_names
from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag

if TYPE_CHECKING:
    from gpupool.contracts.control import EventView
    from gpupool.contracts.control_client import ControlClient

app = typer.Typer(help="Why something is as it is.", no_args_is_help=True)
_PAGE: Final = 1000


@app.callback()
def why() -> None:
    """Hold the things one can ask about."""


@app.command()
def chute(
    name: Annotated[str, typer.Argument(help="The workload's name.", autocompletion=chute_names)],
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Say why an app is not placed as wanted: who refuses it and by which rule, or where another copy would go.

    Example: `gpupool why chute my-app`
    """
    from gpupool.cli.output import print_json
    from gpupool.cli.reasons import chute_lines

    with connect(control) as client:
        told = client.why(name)
        if as_json:
            print_json(told)
        else:
            typer.echo("\n".join(chute_lines(told, client.workload(name), client.nodes())))


@app.command()
def node(
    name: Annotated[
        str, typer.Argument(help="The node's name; a removed one by its id.", autocompletion=node_names)
    ],
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Say since when and why a node is in its state, who set it aside, and what keeps work from it.

    Example: `gpupool why node gpu-1`
    """
    from gpupool.cli.node_draining import lines_of
    from gpupool.cli.reasons import node_lines

    with connect(control) as client:
        found = client.node(name)
        lines = node_lines(found, _events_of(client, found.id))
        if found.draining:
            lines += lines_of(client.drain_state(found.id))
    _print({"node": found.name, "state": found.state.value}, lines, as_json=as_json)


@app.command()
def gpu(
    device: Annotated[str, typer.Argument(help="NODE:INDEX, or its id.")],
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what holds a GPU; of an idle one, why each app that waits does not take it.

    Example: `gpupool why gpu gpu-1:0`
    """
    from gpupool.cli.reasons import find_device, gpu_lines

    with connect(control) as client:
        found = find_device(client.devices(), device)
        workloads = client.workloads()
        waiting = [client.why(w.id) for w in workloads if w.active < w.wanted]
        lines = gpu_lines(found, workloads, waiting)
    _print({"device": found.id, "node": found.node}, lines, as_json=as_json)


def _events_of(client: "ControlClient", subject: str) -> "list[EventView]":
    """Return every event of one thing, oldest first."""
    found: list[EventView] = []
    while page := client.events(after=found[-1].seq if found else 0, limit=_PAGE, subject=subject):
        found += page
    return found


def _print(facts: dict[str, str], lines: list[str], *, as_json: bool) -> None:
    from gpupool.cli.output import print_plain_json

    if as_json:
        print_plain_json({**facts, "why": lines})
    else:
        typer.echo("\n".join(lines))
