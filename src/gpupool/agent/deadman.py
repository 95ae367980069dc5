"""The dead-man's switch: control tells people when something dies, so somebody else has to tell when control does.

An agent that has not reached control for some minutes says so through the ``alerts.yaml`` of its own machine: once,
and once more when control is back. What it has told is kept in a file, so that a restart of the agent neither tells
it twice nor loses the end.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from gpupool.core.errors import EnvironmentProblemError
from gpupool.core.files import read_json, remove_unfinished, write_private_json
from gpupool.core.ids import new_id
from gpupool.notify.courier import Courier
from gpupool.notify.port import Note

LOOK_SECONDS: Final = 5.0
FIRST_RETRY_SECONDS: Final = 60.0
LONGEST_RETRY_SECONDS: Final = 900.0
_LOG = structlog.get_logger(__name__)


class DeadMan:
    """Watches whether control is reached."""

    def __init__(
        self,
        control: str,
        node: str,
        limit_seconds: float,
        couriers: Sequence[Courier],
        memory: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``control``: its address; ``memory``: the file that outlives a restart."""
        self._control, self._node = control, node
        self._limit, self._couriers, self._memory, self._clock = limit_seconds, couriers, memory, clock
        self.look_seconds = min(LOOK_SECONDS, limit_seconds / 4)
        self._heard = self._looked = clock()
        self._heard_at = datetime.now(UTC)
        self._why = "no answer yet"
        self._told_since = _told_since(memory)
        self._back = False
        self._not_before = 0.0
        self._failures = 0

    def heard(self) -> None:
        """Control has taken a report."""
        self._heard, self._heard_at = self._clock(), datetime.now(UTC)
        self._back = True

    def lost(self, why: str) -> None:
        """Control was not reached."""
        self._why, self._back = why, False

    async def run(self) -> None:
        """Watch until cancelled."""
        remove_unfinished(self._memory)
        async with asyncio.TaskGroup() as group:
            for courier in self._couriers:
                group.create_task(courier.run())
            while True:
                await asyncio.sleep(self.look_seconds)
                await self.look()

    async def look(self) -> None:
        """Look once, and tell what is to be told."""
        now = self._clock()
        # A process that was stopped has not asked either.
        self._heard += max(0.0, now - self._looked - 3 * self.look_seconds)
        self._looked = now
        if now < self._not_before:
            return
        since = self._told_since
        if since is None:
            lost_since = self._heard_at
            if now - self._heard > self._limit and await self._tell(self._gone(lost_since)):
                self._remember(lost_since)
        elif self._back and await self._tell(self._returned(since)):
            self._remember(None)

    def _gone(self, since: datetime) -> Note:
        return self._note(
            "control cannot be reached",
            f"Node {self._node} has not reached control at {self._control} since {since:%Y-%m-%d %H:%M:%S} UTC: "
            f"{self._why}\nWhile that lasts, nothing new is placed, and control's own alerts may be dead with it.",
            since,
            firing=True,
        )

    def _returned(self, since: datetime) -> Note:
        return self._note(
            "over: control cannot be reached",
            f"Node {self._node} reaches control at {self._control} again; it did not since {since:%Y-%m-%d %H:%M:%S} UTC.",
            since,
            firing=False,
        )

    def _note(self, title: str, text: str, since: datetime, *, firing: bool) -> Note:
        event = {
            "alert": "control_unreachable",
            "subject": self._node,
            "label": self._control,
            "severity": "critical",
            "why": self._why,
            "status": "firing" if firing else "over",
            "since": since.isoformat(timespec="seconds"),
            "until": None if firing else datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return Note(
            title=f"gpupool {self._node}: {title}",
            text=text,
            tone="failure" if firing else "success",
            facts={"version": 1, "id": new_id("ev"), "test": False, "pool": self._node, "events": [event]},
        )

    async def _tell(self, note: Note) -> bool:
        """Post to everybody; tell whether anybody took it, and put off the next try where nobody did."""
        _LOG.warning("dead_man.tells", title=note.title)
        posts = [courier.post(note) for courier in self._couriers]
        for ended in asyncio.as_completed(posts):
            if await ended:
                self._failures = 0
                return True
        pause = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._not_before = self._clock() + pause
        return False

    def _remember(self, since: datetime | None) -> None:
        self._told_since = since
        try:
            if since is None:
                self._memory.unlink(missing_ok=True)
            else:
                write_private_json(self._memory, {"control_lost_since": since.isoformat()})
        except (EnvironmentProblemError, OSError) as error:
            _LOG.warning("dead_man.not_kept", file=str(self._memory), why=str(error))


def _told_since(memory: Path) -> datetime | None:
    """Return since when control was lost, as an earlier agent has told; None where it told nothing that lasts."""
    with suppress(OSError, TypeError, ValueError, AttributeError):
        found = datetime.fromisoformat(str((read_json(memory) or {}).get("control_lost_since")))
        return found if found.tzinfo is not None else None
    return None
