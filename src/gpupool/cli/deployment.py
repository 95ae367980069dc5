"""``gpupool deployment``: the single placements of chutes and recompute servers, wherever they run.

`gpupool chute` looks at one app; this looks at the whole pool, which is what an operator wants who asks what a machine
does or what has failed.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from gpupool.cli.completing import chute_names, deployment_ids, node_names
from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag
from gpupool.cli.watching import WatchFlag
from gpupool.fleet.placements import PlacementState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpupool.contracts.control import PlacementView
    from gpupool.contracts.control_client import ControlClient

app = typer.Typer(help="The single deployments of chutes and recompute servers.", no_args_is_help=True)
Id = Annotated[str, typer.Argument(help="The deployment's id.", autocompletion=deployment_ids)]


@app.command("list")
def list_deployments(
    chute: Annotated[str | None, typer.Option(help="Only of this chute.", autocompletion=chute_names)] = None,
    node: Annotated[str | None, typer.Option(help="Only on this node.", autocompletion=node_names)] = None,
    state: Annotated[
        list[PlacementState] | None, typer.Option(help="Only in this state; repeatable.")
    ] = None,
    ended: Annotated[bool, typer.Option("--all", "-a", help="Ended and failed ones too.")] = False,
    watch: WatchFlag = False,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the live deployments, the newest first.

    Examples: `gpupool deployment list --node gpu-1` · `gpupool deployment list --state failed --json` ·
    `gpupool deployment list --watch`
    """
    from gpupool.cli.output import print_json
    from gpupool.cli.watching import shown_or_watched

    with connect(control) as client:

        def show() -> None:
            found = _found(client, chute, node, state or [], ended=ended)
            if as_json:
                print_json(found)
            else:
                _print(found, filtered=bool(chute or node or state))

        shown_or_watched(client, show, watch=watch)


def _found(
    client: "ControlClient",
    chute: str | None,
    node: str | None,
    states: "Sequence[PlacementState]",
    *,
    ended: bool,
) -> "list[PlacementView]":
    """Return what was asked for; a final state that is named asks for the final ones as well."""
    from gpupool.fleet.placements import LIVE_STATES

    live = None if ended or any(state not in LIVE_STATES for state in states) else True
    found = client.placements(workload=chute, node=node, live=live)
    return [placement for placement in found if not states or placement.state in states]


def _print(found: "Sequence[PlacementView]", *, filtered: bool) -> None:
    from gpupool.cli.output import age, print_table

    print_table(
        "Deployments",
        ("ID", "CHUTE", "VERSION", "NODE", "STATE", "ADDRESS", "RESTARTS", "SINCE", "REASON"),
        (
            (
                p.id,
                p.workload,
                p.version,
                p.node,
                p.state.value,
                p.address,
                p.restarts,
                age(p.changed_at),
                p.reason,
            )
            for p in found
        ),
        "none like this" if filtered else "none; deploy one with `gpupool chute deploy FILE`",
        below=("REASON",),
    )


@app.command("show")
def show_deployment(deployment: Id, control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """Show one deployment with the devices that it holds, however old it is.

    Example: `gpupool deployment show pl-01m8q9f3jtxn7mk9xz790t32re`
    """
    from gpupool.cli.output import print_json, print_table
    from gpupool.cli.overview import print_placements

    with connect(control) as client:
        found = client.placement(deployment)
        if as_json:
            print_json(found)
            return
        devices = {device.id: device for device in client.devices()}
    print_placements([found])
    print_table(
        "Devices",
        ("NODE", "MODEL", "NAME", "HOLDS", "MIB"),
        (
            (device.node, device.short_ref, device.name, claim.mode.value, claim.mib)
            for claim in found.claims
            if (device := devices.get(claim.device_id)) is not None
        ),
        "none held",
    )


@app.command()
def logs(
    deployment: Id,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=10_000, help="How many of the last lines.")
    ] = 100,
    control: ControlOption = None,
) -> None:
    """Print the last output of one deployment, ended ones included as long as their node keeps it.

    Example: `gpupool deployment logs pl-01m8q9f3jtxn7mk9xz790t32re -n 20`
    """
    with connect(control) as client:
        typer.echo(client.logs(deployment, lines), nl=False)
