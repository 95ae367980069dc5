"""The ``gpupool up`` command line."""

from pathlib import Path
from typing import Annotated

import typer


def up(
    once: Annotated[bool, typer.Option("--once", help="Stop after both results.")] = False,
    demo: Annotated[
        bool, typer.Option("--demo/--no-demo", help="Deploy and show the demo workloads.")
    ] = True,
    level: Annotated[int, typer.Option(min=1, max=7, help="Compression level of the demo's proof.")] = 3,
    home: Annotated[
        Path | None,
        typer.Option(envvar="GPUPOOL_HOME", help="State folder.", show_default="/var/lib/gpupool"),
    ] = None,
    control_port: Annotated[int, typer.Option(min=1, max=65535, envvar="GPUPOOL_CONTROL_PORT")] = 32000,
    gateway_port: Annotated[int, typer.Option(min=1, max=65535, envvar="GPUPOOL_GATEWAY_PORT")] = 32080,
    recompute_port: Annotated[int, typer.Option(min=1, max=65535, envvar="GPUPOOL_RECOMPUTE_PORT")] = 11989,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON; progress goes to stderr.")
    ] = False,
) -> None:
    """Start the whole pool on this machine, show that it works, and stay until Ctrl-C.

    The first Ctrl-C stops every process in good order, the second one at once (exit code 130).

    Examples: `gpupool up` · `gpupool up --once --json` · `gpupool up --control-port 32100 --no-demo`
    """
    from gpupool.cli.up.plan import UpPlan
    from gpupool.cli.up.running import run
    from gpupool.core.home import DEFAULT, Home

    plan = UpPlan(
        home=Home((home or DEFAULT).absolute()),
        control_port=control_port,
        gateway_port=gateway_port,
        recompute_port=recompute_port,
        once=once,
        demo=demo,
        level=level,
    )
    raise typer.Exit(run(plan, as_json=as_json))
