"""Delivers to one target, apart from everything else: a target that fails or hangs holds up nobody but itself.

One message is under way at a time and sixteen may wait; beyond that the oldest is dropped. A message that is not
taken is tried twice more. Whoever posts learns what became of it, and may post anew what people must know.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import structlog

from gpupool.notify.port import NotDeliveredError, Note, Notifier

MOST_WAITING: Final = 16
PAUSES: Final = (5.0, 20.0)
"""Seconds before the second and the third try."""
_LOG = structlog.get_logger(__name__)


class Outcome(StrEnum):
    """What became of one try."""

    TAKEN = "taken"
    NOT_TAKEN = "not_taken"
    DROPPED = "dropped"
    """Too many others waited."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One try."""

    target: str
    at: datetime
    outcome: Outcome
    why: str
    """Empty where it was taken."""
    seconds: float
    final: bool
    """No further try follows."""


@dataclass(slots=True)
class _Waiting:
    note: Note
    taken: asyncio.Future[bool]


class Courier:
    """Carries messages to one target."""

    def __init__(
        self,
        target: str,
        notifier: Notifier,
        on_delivery: Callable[[Delivery], None],
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        """``target``: its name in alerts.yaml; ``on_delivery`` is called in the event loop with every try."""
        self.target = target
        self.kind = notifier.name
        self._notifier, self._on_delivery, self._pauses = notifier, on_delivery, tuple(pauses)
        self._waiting: deque[_Waiting] = deque()
        self._there = asyncio.Event()
        self._missed = 0

    @property
    def waiting(self) -> int:
        """Messages that wait."""
        return len(self._waiting)

    def post(self, note: Note) -> asyncio.Future[bool]:
        """Queue a message; the future tells whether it was taken."""
        if len(self._waiting) >= MOST_WAITING:
            oldest = self._waiting.popleft()
            self._missed += 1
            self._tell(Outcome.DROPPED, f"{MOST_WAITING} messages waited already", 0.0, final=True)
            _settle(oldest.taken, taken_it=False)
        taken = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(note, taken))
        self._there.set()
        return taken

    async def run(self) -> None:
        """Deliver until cancelled; what waits then is not taken."""
        current: _Waiting | None = None
        try:
            while True:
                await self._there.wait()
                while self._waiting:
                    current = self._waiting.popleft()
                    _settle(current.taken, taken_it=await self._deliver(current.note))
                self._there.clear()
        finally:
            for left in (*([current] if current else []), *self._waiting):
                _settle(left.taken, taken_it=False)
            self._waiting.clear()

    async def try_now(self, note: Note) -> Delivery:
        """Send one message once, past those that wait, and return how it went."""
        return await self._attempt(note, final=True)

    async def _deliver(self, note: Note) -> bool:
        if self._missed:
            note = replace(note, text=f"{note.text}\n({self._missed} earlier messages did not get through.)")
        for pause in (*self._pauses, None):
            done = await self._attempt(note, final=pause is None)
            if done.outcome is Outcome.TAKEN:
                self._missed = 0
                return True
            if pause is not None:
                await asyncio.sleep(pause)
        self._missed += 1
        return False

    async def _attempt(self, note: Note, *, final: bool) -> Delivery:
        began = time.monotonic()
        try:
            await self._notifier.send(note)
        except NotDeliveredError as error:
            _LOG.warning("alert.not_delivered", target=self.target, why=error.message, final=final)
            return self._tell(Outcome.NOT_TAKEN, error.message, time.monotonic() - began, final=final)
        return self._tell(Outcome.TAKEN, "", time.monotonic() - began, final=True)

    def _tell(self, outcome: Outcome, why: str, seconds: float, *, final: bool) -> Delivery:
        done = Delivery(self.target, datetime.now(UTC), outcome, why, round(seconds, 2), final)
        self._on_delivery(done)
        return done


def _settle(taken: asyncio.Future[bool], *, taken_it: bool) -> None:
    if not taken.done():
        taken.set_result(taken_it)
