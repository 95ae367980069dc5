"""What runs from the state folder, and what is left of something that ran."""

from collections.abc import Sequence

from gpupool.cli.checks.finding import Finding, failed, passed, warned
from gpupool.cli.local import LocalProcess, LocalState
from gpupool.core.processes import ProcessIdentity


def check_up(up: int | None, processes: Sequence[LocalProcess]) -> Finding:
    """Tell whether an ``up`` runs, and its processes with it. ``up`` is its process id."""
    name = "processes"
    ours = [process for process in processes if process.kind == "pool"]
    running = [process.name for process in ours if process.state is LocalState.RUNNING]
    measured = f"up {f'runs (pid {up})' if up else 'does not run'}; running: {', '.join(running) or 'none'}"
    frozen = [process for process in ours if process.state is LocalState.FROZEN]
    if frozen:
        return failed(
            name, measured, f"Suspended: {_names(frozen)}.", "; ".join(p.why or "" for p in frozen) + "."
        )
    absent = [process for process in ours if process.state is not LocalState.RUNNING]
    if not up and not running:
        return warned(name, measured, "The pool is off.", "Start it with `./up` (installed: `gpupool up`).")
    if up and absent:
        return failed(
            name,
            measured,
            "; ".join(f"{process.name} does not run: {process.why}" for process in absent),
            "`up` starts it again; when it does not stay, mend what its log says (in the logs folder).",
        )
    return passed(name, measured)


def check_records(up: int | None, processes: Sequence[LocalProcess]) -> Finding:
    """Tell which records name a process that is gone."""
    name = "records"
    stale = [process for process in processes if process.state is LocalState.DIED]
    recorded = [process for process in processes if process.pid is not None]
    measured = f"{len(recorded)} records, {len(stale)} of processes that are gone"
    if not stale:
        return passed(name, measured)
    remedy = (
        "`up` notices within a moment; look again with `gpupool status`."
        if up
        else "Nothing to do: the next `gpupool up` clears them."
    )
    return warned(name, measured, f"Gone without a word: {_names(stale)}.", remedy)


def check_leftovers(
    up: int | None, marked: Sequence[ProcessIdentity], workloads: Sequence[LocalProcess]
) -> Finding:
    """Tell which processes of an ``up`` that is gone still run. ``marked``: those that carry its mark."""
    name = "leftovers"
    agent = any(
        process.kind == "pool" and process.name == "agent" and process.state is LocalState.RUNNING
        for process in workloads
    )
    orphans = [process for process in workloads if process.kind != "pool" and process.exists and not agent]
    if up or not (marked or orphans):
        return passed(name, "none")
    pids = sorted({process.pid for process in marked} | {p.pid for p in orphans if p.pid is not None})
    return warned(
        name,
        f"{len(pids)} processes",
        f"They run although no `up` does: pid {', '.join(map(str, pids[:8]))}.",
        "The next `gpupool up` ends them first; `gpupool uninstall` does too.",
    )


def _names(processes: Sequence[LocalProcess]) -> str:
    return ", ".join(f"{process.name} (pid {process.pid})" for process in processes)
