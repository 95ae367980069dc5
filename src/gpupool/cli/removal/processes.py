"""Ending what runs from a state folder before it is removed; what others supervise is for them to stop."""

from gpupool.cli.local import ROLES
from gpupool.cli.up.leftovers import MARK, end_leftovers
from gpupool.core.errors import ConflictError
from gpupool.core.home import Home
from gpupool.core.processes import marked
from gpupool.core.records import ProcessRecord


class StillRunningError(ConflictError):
    """A process that was not started by up still runs from this state folder."""

    code = "still_running"
    default_remedy = "Stop it where it was started (such as `systemctl stop`), then try again."


def end_everything(home: Home) -> int:
    """End what an ``up`` that is gone has left and return how many processes that were.

    Raises StillRunningError, with nothing ended, where a process runs that no ``up`` has started.
    """
    ours = set(marked(MARK, str(home.root)))
    records = (ProcessRecord.read(home.run / f"{role}.json") for role in ROLES)
    others = [r for r in records if r is not None and r.process.alive() and r.process not in ours]
    if others:
        names = ", ".join(f"{record.role} (pid {record.process.pid})" for record in others)
        raise StillRunningError(f"Still running from {home.root}, and not started by `up`: {names}.")
    return end_leftovers(home)
