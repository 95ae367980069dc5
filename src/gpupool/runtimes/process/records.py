"""Run records: what was launched, kept on disk before it is launched.

A record is written twice for every launch: as an intent (phase ``launching``, with its port), and again with pid
and start time once the process exists. A crash in between leaves an intent and perhaps a process; `marks` finds
the latter by its environment.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.core.files import ensure_private_dir, read_json, write_private_json
from gpupool.core.processes import ProcessIdentity
from gpupool.fleet.ports.runtime import LaunchOrder


class Phase(StrEnum):
    """How far a run has come."""

    LAUNCHING = "launching"
    """The process may or may not exist."""
    RUNNING = "running"
    """The process was launched; its identity is in the record."""
    EXITED = "exited"
    """It is over, with everything it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One placement's run, through all its restarts."""

    order: LaunchOrder
    host: str
    phase: Phase = Phase.LAUNCHING
    port: int | None = None
    instance_id: str = ""
    """Made anew for every launch; a health answer that names another one is a stranger's."""
    process: ProcessIdentity | None = None
    launched_at: float = 0.0
    """Unix seconds of the last launch, for people; spans are taken from the process's own start."""
    restarts: int = 0
    """Restarts in place, all told."""
    streak: int = 0
    """Restarts since it last ran healthy for long; what ``max_restarts`` is held against."""
    reason: str | None = None
    uid: int | None = None
    """The Unix user it runs as; None for the agent's own."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        value = asdict(self)
        value["order"]["env"] = dict(self.order.env)
        return value

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        """Return the record in ``value``; None where it is not one."""
        try:
            order = dict(value["order"])
            for name in ("command", "gpu_indices", "gpu_uuids"):
                order[name] = tuple(order[name])
            process = value["process"]
            return cls(
                **{
                    **value,
                    "order": LaunchOrder(**order),
                    "phase": Phase(value["phase"]),
                    "process": ProcessIdentity(**process) if process else None,
                }
            )
        except (TypeError, KeyError, ValueError):
            return None

    def exited(self, reason: str) -> "RunRecord":
        """Return the record of the run's end."""
        return replace(self, phase=Phase.EXITED, process=None, reason=reason)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The private folder of one placement's run."""

    path: Path

    @classmethod
    def of(cls, runs: Path, placement_id: str) -> Self:
        """Return the folder of a placement; raise InvalidInputError for an id that is no plain file name."""
        if not placement_id or placement_id.startswith(".") or "/" in placement_id or "\0" in placement_id:
            raise InvalidInputError("A placement id is a plain name that does not start with a dot.")
        return cls(runs / placement_id)

    @property
    def record_path(self) -> Path:
        """The run record."""
        return self.path / "record.json"

    @property
    def output(self) -> Path:
        """What the workload wrote to standard output and standard error."""
        return self.path / "output.log"

    @property
    def private(self) -> tuple[Path, Path, Path]:
        """The workload's own home, working folder and temporary folder."""
        return self.path / "home", self.path / "work", self.path / "tmp"

    def prepare(self, uid: int | None = None) -> None:
        """Make the folders that are missing, mode 0700, and give the private ones to ``uid``.

        Raises EnvironmentProblemError where that fails. The run's own folder stays ours: what lies in it (record,
        output) cannot be replaced by the workload.
        """
        for folder in (self.path, *self.private):
            ensure_private_dir(folder)
        if uid is not None:
            for folder in self.private:
                give_to(folder, uid)

    def write(self, record: RunRecord) -> None:
        """Keep the record; raise EnvironmentProblemError where that fails."""
        write_private_json(self.record_path, record.to_json())

    def read(self) -> RunRecord | None:
        """Return the record; None where there is none or it is not one."""
        return RunRecord.from_json(read_json(self.record_path))


def give_to(folder: Path, uid: int) -> None:
    """Make ``uid`` the owner of a folder, never of what a symlink in its place leads to."""
    try:
        os.chown(folder, uid, uid, follow_symlinks=False)
    except OSError as error:
        raise EnvironmentProblemError(
            f"The folder {folder} cannot be given to user {uid}: {error.strerror}."
        ) from error


def all_runs(runs: Path) -> Iterator[tuple[RunFolder, RunRecord]]:
    """Yield every run that has a readable record, by name."""
    if not runs.is_dir():
        return
    for path in sorted(runs.iterdir()):
        folder = RunFolder(path)
        record = folder.read()
        if record is not None:
            yield folder, record
