"""``gpupool status``: in one screen what runs, what does not, and why."""

from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag


def status(control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """Show nodes, devices and workloads, and why something is not as wanted.

    Exit code 0 when all that is wanted is active, 5 when something is not, 8 when the pool is not reachable.

    Examples: `gpupool status` · `gpupool status --json | jq '.workloads[].why'`
    """
    import typer

    from gpupool.cli.output import print_json
    from gpupool.cli.overview import print_overview

    with connect(control) as client:
        pool = client.pool()
    if as_json:
        print_json(pool)
    else:
        print_overview(pool)
    if any(workload.active < workload.wanted for workload in pool.workloads):
        raise typer.Exit(5)
