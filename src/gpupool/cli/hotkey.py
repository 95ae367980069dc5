"""``gpupool hotkey``: whose signatures control takes, such as those of `chutes-miner-cli`."""

from typing import Annotated

import typer

from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag

app = typer.Typer(help="Whose signatures control takes.", no_args_is_help=True)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The person that it belongs to; events carry it.")],
    address: Annotated[str, typer.Argument(metavar="SS58", help="Its address: the public half, no secret.")],
    role: Annotated[
        str,
        typer.Option(help="viewer: read. operator: also change nodes and deployments."),
    ] = "operator",
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Let the holder of a hotkey ask control as `chutes-miner-cli` does: each request signed, nothing kept secret here.

    Exit code 5 when the address or the name is known already.

    Example: `gpupool hotkey add alice 5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY`
    """
    from pydantic import ValidationError

    from gpupool.cli.output import print_json
    from gpupool.contracts.hotkeys import HotkeyRequest
    from gpupool.contracts.problems import describe
    from gpupool.core.errors import InvalidInputError

    try:
        request = HotkeyRequest.model_validate({"address": address, "name": name, "role": role})
    except ValidationError as error:
        raise InvalidInputError(describe(error)) from error
    with connect(control) as client:
        added = client.add_hotkey(request)
    if as_json:
        print_json(added)
        return
    typer.echo(f"{added.name} may ask as {added.role.value} with {added.address}.")


@app.command("list")
def list_hotkeys(control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """List the hotkeys that may ask control.

    Example: `gpupool hotkey list --json`
    """
    from gpupool.cli.output import age, print_json, print_table

    with connect(control) as client:
        found = client.hotkeys()
    if as_json:
        print_json(found)
        return
    rows = [(key.name, key.role.value, key.address, age(key.created_at), key.created_by) for key in found]
    print_table(
        "Hotkeys", ("NAME", "ROLE", "ADDRESS", "AGE", "BY"), rows, "none; `gpupool hotkey add` lets one in."
    )


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The hotkey's name or address.")], control: ControlOption = None
) -> None:
    """Let a hotkey ask nothing any more, from the next request on.

    Example: `gpupool hotkey remove alice`
    """
    with connect(control) as client:
        client.remove_hotkey(name)
    typer.echo(f"The hotkey {name} may ask nothing any more.")
