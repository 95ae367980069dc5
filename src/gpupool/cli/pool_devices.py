"""``gpupool gpu pool``: the devices of every machine of the pool, and how much of each is free."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpupool.cli.completing import node_names
from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag
from gpupool.cli.watching import WatchFlag

if TYPE_CHECKING:
    from gpupool.contracts.control import DeviceView


def list_pool_devices(
    node: Annotated[str | None, typer.Option(help="Only of this node.", autocompletion=node_names)] = None,
    model: Annotated[str | None, typer.Option(help="Only of this catalog model, such as a100.")] = None,
    idle: Annotated[bool, typer.Option("--idle", help="Only those of which nothing is held.")] = False,
    free_mib: Annotated[
        int | None, typer.Option(min=1, help="Only those with so many MiB free or more.")
    ] = None,
    watch: WatchFlag = False,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the devices of all machines of the pool, and how much of each is free.

    Examples: `gpupool gpu pool --idle` · `gpupool gpu pool --model h100 --free-mib 40000 --json`
    """
    from gpupool.cli.output import print_json
    from gpupool.cli.overview import print_devices
    from gpupool.cli.watching import shown_or_watched

    def fits(device: "DeviceView") -> bool:
        return (
            node in {None, device.node, device.node_id}
            and model in {None, device.short_ref}
            and (free_mib is None or (device.present and device.free_mib >= free_mib))
            and not (idle and (device.claims or not device.present))
        )

    with connect(control) as client:

        def show() -> None:
            found = [device for device in client.devices() if fits(device)]
            if as_json:
                print_json(found)
            elif found or not (node or model or idle or free_mib):
                print_devices(found)
            else:
                typer.echo("Devices: none like this")

        shown_or_watched(client, show, watch=watch)
