"""Jobs: a chute's one run, with a beginning, an end and a result."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpupool.fleet.machines import StateMachine


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S = JobState
JOB_MACHINE: Final = StateMachine(
    "job",
    {
        _S.QUEUED: frozenset({_S.RUNNING, _S.CANCELLED, _S.FAILED}),
        _S.RUNNING: frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLED, _S.QUEUED}),
        _S.SUCCEEDED: frozenset(),
        _S.FAILED: frozenset(),
        _S.CANCELLED: frozenset(),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A chute's one run. A lost node puts a running job back into the queue."""

    id: str
    workload_id: str
    placement_id: str | None = None
    state: JobState = JobState.QUEUED
    reason: str | None = None
    created_at: datetime
    changed_at: datetime

    def moved(self, to: JobState, at: datetime, reason: str | None = None) -> "Job":
        """Return the job in state ``to``; raise ImpossibleMoveError where the machine refuses."""
        JOB_MACHINE.check(self.state, to, self.id)
        return (
            self if to is self.state else replace(self, state=to, changed_at=at, reason=reason or self.reason)
        )
