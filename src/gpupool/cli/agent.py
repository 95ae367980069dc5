"""``gpupool agent``: this machine as a node of the pool."""

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="This machine as a node of the pool.", no_args_is_help=True)


@app.callback()
def agent() -> None:
    """Hold the commands of a node."""


@app.command("run")
def run(
    control: Annotated[str | None, typer.Option(metavar="URL", help="Address of control.")] = None,
    name: Annotated[str | None, typer.Option(help="The node's name; left out, the host name.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Where the gateway reaches this node; left out, 127.0.0.1.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="Where workloads listen, if not on that address.")
    ] = None,
    join_token_file: Annotated[
        Path | None,
        typer.Option(help="File with the join token; left out, keys/join.token in the state folder."),
    ] = None,
    hourly_usd: Annotated[float | None, typer.Option(help="What this node costs an hour.")] = None,
    stand_in_gpus: Annotated[
        int | None, typer.Option(help="Development mode: make up so many GPUs of this CPU.")
    ] = None,
    stand_in_model: Annotated[
        str | None, typer.Option(help="Development mode: the catalog model that the CPU stands in for.")
    ] = None,
) -> None:
    """Join the pool and run what is placed here, until SIGTERM or Ctrl-C.

    Example: `gpupool agent run --control http://127.0.0.1:32000`
    """
    from pydantic import ValidationError

    from gpupool.agent.main import run_agent
    from gpupool.agent.settings import AgentSettings
    from gpupool.contracts.problems import describe
    from gpupool.core.errors import InvalidInputError
    from gpupool.core.logging import set_up_logging

    given: dict[str, Any] = {
        "control_url": control,
        "node_name": name,
        "node_address": address,
        "workload_host": listen,
        "join_token_file": join_token_file,
        "hourly_usd": hourly_usd,
        "stand_in_gpus": stand_in_gpus,
        "stand_in_model": stand_in_model,
    }
    try:
        settings = AgentSettings(**{key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        raise InvalidInputError(f"The agent's settings are not valid: {describe(error)}.") from error
    set_up_logging("agent", settings.log_level)
    run_agent(settings)
