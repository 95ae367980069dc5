"""``gpupool node``: the machines of the pool."""

import typer

from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag

app = typer.Typer(help="The machines of the pool.", no_args_is_help=True)


@app.command("list")
def list_nodes(control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """List the nodes.

    Example: `gpupool node list --json`
    """
    from gpupool.cli.output import print_json
    from gpupool.cli.overview import print_nodes

    with connect(control) as client:
        nodes = client.nodes()
    if as_json:
        print_json(nodes)
    else:
        print_nodes(nodes)
