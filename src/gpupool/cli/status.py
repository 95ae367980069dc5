"""``gpupool status``: in one screen what runs, what does not, and why."""

from typing import TYPE_CHECKING

from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag

if TYPE_CHECKING:
    from gpupool.cli.local import LocalProcess
    from gpupool.contracts.control import PoolView
    from gpupool.core.errors import GpupoolError


def status(control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """Show nodes, devices and workloads, the processes of this state folder, and why something is not as wanted.

    Exit code 0 when all that is wanted is active, 5 when something is not, 8 when the pool is not reachable; then
    only the processes are shown, as their records tell.

    Examples: `gpupool status` · `gpupool status --json | jq '.workloads[].why'`
    """
    import typer

    from gpupool.cli.local import local_processes
    from gpupool.core.errors import DeadlineError, UnavailableError
    from gpupool.core.home import Home

    processes = local_processes(Home.from_environment())
    try:
        if control is None:
            _refuse_frozen(processes)
        with connect(control) as client:
            pool = client.pool()
    except (UnavailableError, DeadlineError) as error:
        _show_unreachable(error, processes, as_json=as_json)
        raise
    _show(pool, processes, as_json=as_json)
    if any(workload.active < workload.wanted for workload in pool.workloads):
        raise typer.Exit(5)


def _refuse_frozen(processes: "list[LocalProcess]") -> None:
    """Raise UnavailableError where this machine's control is suspended, which would only answer with silence."""
    from gpupool.cli.local import LocalState
    from gpupool.core.errors import UnavailableError

    for process in processes:
        if process.kind == "pool" and process.name == "control" and process.state is LocalState.FROZEN:
            raise UnavailableError(
                f"Control (pid {process.pid}) is suspended and answers nobody.",
                remedy=f"Let it go on with `kill -CONT {process.pid}`.",
            )


def _show(pool: "PoolView", processes: "list[LocalProcess]", *, as_json: bool) -> None:
    from gpupool.cli.output import print_plain_json
    from gpupool.cli.overview import print_overview

    if as_json:
        told = [process.to_json() for process in processes]
        print_plain_json({**pool.model_dump(mode="json"), "processes": told})
        return
    print_overview(pool)
    print_processes(processes)


def _show_unreachable(error: "GpupoolError", processes: "list[LocalProcess]", *, as_json: bool) -> None:
    from gpupool.cli.output import print_plain_json

    if as_json:
        problem = {"code": error.code, "message": error.message, "remedy": error.remedy}
        print_plain_json({"error": problem, "processes": [process.to_json() for process in processes]})
        return
    print_processes(processes)


def print_processes(processes: "list[LocalProcess]") -> None:
    """Print the processes of this state folder as a table."""
    from gpupool.cli.output import print_table

    print_table(
        "Processes on this machine",
        ("NAME", "STATE", "PID", "ADDRESS", "DEPLOYMENT", "WHY"),
        ((p.name, p.state.value, p.pid, p.address, p.placement, p.why) for p in processes),
        "none",
        below=("WHY",),
    )
