"""What runs from a state folder, told by its records alone: for when control cannot be asked.

Records are written by others and may be stale, so each one is held against the process table.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal

from gpupool.core.errors import EnvironmentProblemError
from gpupool.core.home import Home
from gpupool.core.processes import ProcessIdentity
from gpupool.core.records import ProcessRecord

ROLES: Final = ("control", "gateway", "agent")
EXTRA_ROLES: Final = ("recompute", "recompute-external")
"""Processes that run without a pool too; shown only where they have left a record."""
Kind = Literal["pool", "recompute", "chute"]


class LocalState(StrEnum):
    """What the process table says about a recorded process."""

    RUNNING = "running"
    FROZEN = "frozen"
    """It exists and is stopped (SIGSTOP, a debugger), so it answers nobody."""
    DIED = "died"
    """Its record is there, its process is not."""
    OFF = "off"
    """No record: it was never started or has ended in good order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProcess:
    """One process of the pool on this machine."""

    name: str
    """A role (control, gateway, agent) or the name of a workload."""
    kind: Kind
    state: LocalState
    pid: int | None = None
    address: str | None = None
    placement: str | None = None
    """Of a workload's process."""
    why: str | None = None
    """Why it does not run, as far as its record and its output tell."""
    instance_id: str = ""

    @property
    def exists(self) -> bool:
        """Whether the very process that was recorded is there; its pid may be a stranger's otherwise."""
        return self.state in {LocalState.RUNNING, LocalState.FROZEN}

    def to_json(self) -> dict[str, Any]:
        """Return the facts for ``--json``."""
        return asdict(self)


def local_processes(home: Home) -> list[LocalProcess]:
    """Return control, gateway and agent, and every workload that a run record names.

    Raises EnvironmentProblemError where the records cannot be read, such as those of another user's pool.
    """
    try:
        extra = [role for role in EXTRA_ROLES if (home.run / f"{role}.json").exists()]
        return [*(_of_role(home, role) for role in (*ROLES, *extra)), *_workloads(home)]
    except OSError as error:
        raise EnvironmentProblemError(
            f"{error.filename or home.root} cannot be read: {error.strerror}.",
            remedy="Run as the owner of the state folder, or name your own with GPUPOOL_HOME.",
        ) from error


def up_pid(home: Home) -> int | None:
    """Return the process id of the ``up`` that holds this state folder; None when there is none.

    Looks instead of locking, since even a lock held for an instant could turn away an ``up`` that starts right now.
    """
    path = home.run / "up.lock"
    try:
        pid = int(path.read_text())
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except (OSError, ValueError):
        return None
    return pid if any(_leads_to(link, path.resolve()) for link in links) else None


def _leads_to(link: Path, path: Path) -> bool:
    try:
        return os.readlink(link) == str(path)
    except OSError:
        # Closed since it was listed.
        return False


def is_recompute(command: tuple[str, ...]) -> bool:
    """Tell whether a workload's command is this product's recompute server."""
    return any(pair == ("recompute", "serve") for pair in itertools.pairwise(command))


def state_of(process: ProcessIdentity) -> LocalState:
    """Return what the process table says about a process that was recorded as running."""
    if not process.alive():
        return LocalState.DIED
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return LocalState.DIED
    letter = text[text.rindex(")") + 2]
    return LocalState.FROZEN if letter in "Tt" else LocalState.RUNNING


def _of_role(home: Home, role: str) -> LocalProcess:
    from gpupool.runtimes.process.output import last_words

    record = ProcessRecord.read(home.run / f"{role}.json")
    if record is None:
        return LocalProcess(
            name=role, kind="pool", state=LocalState.OFF, why="it was not started, or it was stopped"
        )
    state = state_of(record.process)
    why = None
    if state is LocalState.DIED:
        why = last_words(home.logs / f"{role}.log") or "its log is empty"
    elif state is LocalState.FROZEN:
        why = f"it is suspended; let it go on with `kill -CONT {record.process.pid}`"
    return LocalProcess(
        name=role,
        kind="recompute" if role in EXTRA_ROLES else "pool",
        state=state,
        pid=record.process.pid,
        address=record.url,
        why=why,
        instance_id=record.instance_id,
    )


def _workloads(home: Home) -> Iterator[LocalProcess]:
    from gpupool.runtimes.process.output import last_words
    from gpupool.runtimes.process.records import Phase, all_runs

    for folder, record in all_runs(home.agent / "runs"):
        state, why = LocalState.OFF, record.reason
        if record.process is not None and record.phase is not Phase.EXITED:
            state = state_of(record.process)
        elif record.phase is Phase.LAUNCHING:
            state = LocalState.DIED
        if state is LocalState.RUNNING:
            # The reason is that of an earlier launch.
            why = None
        elif state is LocalState.DIED:
            why = last_words(folder.output) or "it ended without a word, and no agent has noticed yet"
        yield LocalProcess(
            name=record.order.workload_name,
            kind="recompute" if is_recompute(record.order.command) else "chute",
            state=state,
            pid=record.process.pid if record.process else None,
            address=f"http://{record.host}:{record.port}" if record.port else None,
            placement=record.order.placement_id,
            why=why,
            instance_id=record.instance_id,
        )
