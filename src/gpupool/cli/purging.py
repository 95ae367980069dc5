"""``gpupool chute purge``: end deployments so that each is placed anew, wherever it is best now."""

from typing import Annotated

import typer

from gpupool.cli.completing import deployment_ids, node_names
from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag


def purge(
    deployment: Annotated[
        str | None, typer.Argument(help="The id of a single deployment.", autocompletion=deployment_ids)
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Those of chutes on this node, jobs too.", autocompletion=node_names)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Those of all chutes, except where a job runs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """End deployments: what is wanted stays, and is placed anew at once. Locked nodes take none of it back.

    Examples: `gpupool chute purge pl-01m8q9f3jtxn7mk9xz790t32re` · `gpupool chute purge --node gpu-1 --yes` ·
    `gpupool chute purge --all`
    """
    from pydantic import ValidationError

    from gpupool.cli.output import print_json, print_table
    from gpupool.contracts.purging import PurgeRequest
    from gpupool.core.errors import InvalidInputError

    try:
        request = PurgeRequest(everything=everything, node=node, deployment=deployment)
    except ValidationError as error:
        raise InvalidInputError(
            "Exactly one thing can be purged: a deployment by its id, a node with --node, or --all."
        ) from error
    what = f"the deployment {deployment}" if deployment else f"what runs on {node}" if node else "all chutes"
    with connect(control) as client:
        if not yes:
            typer.confirm(f"Purge {what}? Requests meet no instance until they are placed anew", abort=True)
        purged = client.purge(request)
    if as_json:
        print_json(purged)
        return
    rows = [(one.deployment_id, one.chute, one.node, one.gpus) for one in purged]
    print_table("Ending", ("ID", "CHUTE", "NODE", "GPUS"), rows, "nothing that could be purged")
