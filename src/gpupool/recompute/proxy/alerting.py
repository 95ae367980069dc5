"""Delivers alerts one message after another, apart from traffic: a hook that fails or hangs is told and left behind.

One message is under way at a time and sixteen may wait; a hook that does not take one gets it twice more. What is
dropped is counted in the next message.
"""

import asyncio
import json
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from gpupool.core.errors import BusyError
from gpupool.core.ids import new_id
from gpupool.notify.hooks import Hook, HookError
from gpupool.recompute.proxy.alarms import Alarms, Event, Outbox
from gpupool.recompute.proxy.alert_rules import Troubles

MOST_WAITING: Final = 16
PAUSES: Final = (5.0, 20.0)
"""Seconds before the second and the third try."""
_KEPT_DELIVERIES: Final = 20
log = structlog.get_logger(__name__)


class Alerting:
    """Alarms, the messages they make, and the hooks that get them."""

    def __init__(
        self, hooks: Sequence[Hook], about: dict[str, Any], pauses: Sequence[float] = PAUSES
    ) -> None:
        """``about``: what every message says of this proxy."""
        self._hooks = list(hooks)
        self._about = {"host": socket.gethostname(), **about}
        self._pauses = tuple(pauses)
        self._alarms = Alarms()
        self._outbox = Outbox()
        self._waiting: deque[bytes] = deque()
        self._dropped = 0
        self._there = asyncio.Event()
        self._testing = asyncio.Lock()
        self._deliveries: deque[dict[str, Any]] = deque(maxlen=_KEPT_DELIVERIES)

    def hook_names(self) -> list[str]:
        """Return what is told: no more of an address than its host."""
        return [hook.name for hook in self._hooks]

    def firing(self) -> list[dict[str, Any]]:
        """Return what has been told and is not over."""
        return [_row(event) for event in self._alarms.firing()]

    def deliveries(self) -> list[dict[str, Any]]:
        """Return the last deliveries, newest last."""
        return list(self._deliveries)

    def look(self, found: Troubles, now: float, wall: float) -> None:
        """Take what is wrong now; what is to be told is logged at once and sent soon."""
        events = self._alarms.look(found, now, wall)
        for event in events:
            tell = log.warning if event.until is None else log.info
            state = "alert_firing" if event.until is None else "alert_over"
            tell(state, alert=event.alert, subject=event.subject, why=event.why)
        self._outbox.add(events, now)
        due = self._outbox.due(now)
        if due is not None and self._hooks:
            self._queue(self._message(due[0], due[1], wall))

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self._there.wait()
            while self._waiting:
                message = self._waiting.popleft()
                await asyncio.gather(*(self._deliver(hook, message) for hook in self._hooks))
            self._there.clear()

    async def test(self) -> list[dict[str, Any]]:
        """Send every hook a test message, once, and return how it went; raise BusyError while another test runs."""
        if self._testing.locked():
            raise BusyError("The alert hooks are being tested already.")
        async with self._testing:
            event = Event("test", "this proxy", "asked for by a command", time.time())
            message = self._message([event], 0, time.time(), test=True)
            return list(await asyncio.gather(*(self._send(hook, message) for hook in self._hooks)))

    def _queue(self, message: bytes) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self._dropped += 1
            log.warning("alert_dropped", waiting=MOST_WAITING)
        self._waiting.append(message)
        self._there.set()

    def _message(self, events: list[Event], dropped: int, wall: float, *, test: bool = False) -> bytes:
        said = "; ".join(event.words for event in events[:10])
        more = f"; and {len(events) - 10} more" if len(events) > 10 else ""
        body = {
            "version": 1,
            "id": new_id("ev"),
            "time": _moment(wall),
            "test": test,
            "proxy": self._about,
            "text": f"gpupool proxy {self._about['host']}:{self._about.get('port', '-')}: {said}{more}",
            "events": [_row(event) for event in events],
            "firing": self.firing(),
            "dropped_events": dropped,
            "dropped_messages": self._dropped,
        }
        return json.dumps(body).encode() + b"\n"

    async def _deliver(self, hook: Hook, message: bytes) -> None:
        for pause in (*self._pauses, None):
            done = await self._send(hook, message)
            if done["ok"]:
                return
            log.warning("alert_not_delivered", hook=hook.name, why=done["why"], again_in=pause)
            if pause is not None:
                await asyncio.sleep(pause)

    async def _send(self, hook: Hook, message: bytes) -> dict[str, Any]:
        began, why = time.monotonic(), ""
        try:
            await hook.send(message)
        except HookError as error:
            why = str(error)
        seconds = round(time.monotonic() - began, 2)
        done = {
            "hook": hook.name,
            "time": _moment(time.time()),
            "ok": not why,
            "why": why,
            "seconds": seconds,
        }
        self._deliveries.append(done)
        return done


def _row(event: Event) -> dict[str, Any]:
    times = {"since": _moment(event.since), "until": _moment(event.until) if event.until else None}
    return asdict(event) | times | {"status": "firing" if event.until is None else "over"}


def _moment(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="seconds")
