"""The alert desk: looks at the pool every two seconds, raises and ends alarms, and has people told of them.

It sends nothing itself: each target has a courier of its own, so nothing here ever waits for a chat service. What is
to be told follows from the alarms in the store; what nobody took, or a restart has cut off, is told later.
"""

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from gpupool.control.alerts.alarms import Alarms
from gpupool.control.alerts.rules import (
    AGENT_STOPPED,
    FOLLOWER_GONE,
    STORE_TROUBLE,
    Disk,
    Sight,
    store_trouble,
    troubles,
)
from gpupool.control.alerts.saving import Saving
from gpupool.control.alerts.telling import Notice, Pace, Phase, notices, unheard
from gpupool.control.alerts.wording import note_of
from gpupool.control.followers import Followers
from gpupool.control.pool import Pool
from gpupool.control.snapshot import Snapshot
from gpupool.core.errors import BusyError, NotFoundError, StorageError
from gpupool.fleet.alarms import Alarm, Key, Severity, Silence
from gpupool.fleet.nodes import NodeState
from gpupool.notify.courier import PAUSES, Courier, Delivery, Outcome
from gpupool.notify.log import LogNotifier
from gpupool.notify.port import Notifier, trial_note

LOOK_SECONDS: Final = 2.0
DISK_SECONDS: Final = 30.0
KEPT_DELIVERIES: Final = 50
LOG_ONLY: Final = (("log", LogNotifier(), Severity.WARNING),)
_LOG = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What an alert desk is told: whom to tell, and how often."""

    targets: Sequence[tuple[str, Notifier, Severity]] = LOG_ONLY
    """Name, adapter and least severity of each."""
    group_seconds: float = 10.0
    distance_seconds: float = 60.0
    repeat: timedelta = timedelta(hours=12)
    rises: Mapping[str, float] | None = None
    pauses: Sequence[float] = PAUSES
    look_seconds: float = LOOK_SECONDS
    disk: Callable[[], Disk | None] = lambda: None


class AlertDesk:
    """The alarms of one run of control."""

    def __init__(self, pool: Pool, settings: Desk | None = None) -> None:
        self._pool = pool
        self._settings = settings or Desk()
        self.followers = Followers(pool.clock)
        self.tries: Counter[tuple[str, str]] = Counter()
        """Tries to deliver so far, by target and outcome."""
        self.deliveries: deque[Delivery] = deque(maxlen=KEPT_DELIVERIES)
        """The latest tries, newest last."""
        self.couriers = [
            (Courier(name, notifier, self._note_delivery, self._settings.pauses), least)
            for name, notifier, least in self._settings.targets
        ]
        self.alarms = Alarms(rises=self._settings.rises)
        self.silences: list[Silence] = []
        self._saving = Saving(pool)
        self._pace = Pace(self._settings.group_seconds, self._settings.distance_seconds)
        self._under_way: dict[Key, list[Notice]] = {}
        """Each with the message that tells of it."""
        self._tellings: set[asyncio.Task[None]] = set()
        self._testing = asyncio.Lock()
        self._disk: Disk | None = None
        self._disk_seen = -DISK_SECONDS
        self._loaded = False
        self._where = socket.gethostname()

    async def run(self) -> None:
        """Look and tell until the pool closes, or another control does so."""
        if self._pool.sharing is not None:
            # Another control has kept them since this one last led, if ever.
            self.alarms, self._loaded = Alarms(rises=self._settings.rises), False
        couriers = [asyncio.ensure_future(courier.run()) for courier, _ in self.couriers]
        looking = asyncio.ensure_future(self._keep_looking())
        try:
            done, _ = await asyncio.wait([looking, *couriers], return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        finally:
            for task in (looking, *couriers, *self._tellings):
                task.cancel()
            await asyncio.gather(looking, *couriers, *self._tellings, return_exceptions=True)
            self._under_way.clear()

    async def _keep_looking(self) -> None:
        while not self._pool.changes.closed:
            await self.look()
            await self._pool.changes.until(lambda: False, self._settings.look_seconds)

    async def look(self) -> None:
        """Look once: raise and end alarms, keep them, and have told what is due."""
        pool, now, wall = self._pool, self._pool.clock.monotonic(), self._pool.clock.now()
        snapshot, failed = await self._refresh()
        found = dict(store_trouble(failed or pool.store_trouble))
        if snapshot is not None:
            found |= troubles(await self._sight(snapshot))
        changed = self.alarms.look(
            found,
            now,
            wall,
            judged=lambda key: self._is_judged(key, store_only=snapshot is None),
            raising=now - pool.started > 2 * pool.silence_seconds,
        )
        for alarm in changed:
            self._announce(alarm)
        for key in unheard(self.alarms, self.silences, wall, self._under_way):
            self.alarms.forget(key)
            self._saving.touch(key)
        self._tell(now)
        await self._save()

    async def _refresh(self) -> tuple[Snapshot | None, str]:
        """Return the state of the pool, and read what others may have changed; None, and why, where that fails."""
        try:
            snapshot = await self._pool.snapshot()
            async with self._pool.store.read() as reader:
                await self._pool.check_lease(reader)
                self.silences = list(await reader.silences())
                if not self._loaded:
                    self.alarms = Alarms([*await reader.alarms(), *self.alarms], self._settings.rises)
                    self._loaded = True
        except StorageError as error:
            return None, error.message
        return snapshot, ""

    async def _sight(self, snapshot: Snapshot) -> Sight:
        links = self._pool.links
        heard, left = {}, set()
        for node in snapshot.nodes.values():
            if node.state is not NodeState.UNREACHABLE:
                continue
            link = links.get(node.id)
            if link is not None:
                heard[node.id] = link.heard_at
            if link.has_left if link is not None else self._lasts((AGENT_STOPPED, node.id)):
                left.add(node.id)
        return Sight(
            snapshot=snapshot,
            heard=heard,
            left=frozenset(left),
            quiet=self.followers.quiet(),
            disk=await self._disk_now(),
        )

    async def _disk_now(self) -> Disk | None:
        now = self._pool.clock.monotonic()
        if now - self._disk_seen >= DISK_SECONDS:
            # A disk of the network may hang.
            self._disk, self._disk_seen = await asyncio.to_thread(self._settings.disk), now
        return self._disk

    def _lasts(self, key: Key) -> bool:
        alarm = self.alarms.get(key)
        return alarm is not None and alarm.until is None

    def _is_judged(self, key: Key, *, store_only: bool) -> bool:
        rule, subject = key
        if rule == STORE_TROUBLE:
            return True
        # A follower of an earlier run of control is neither back nor gone before it is heard of.
        return not store_only and (rule != FOLLOWER_GONE or subject in self.followers.known())

    def _announce(self, alarm: Alarm) -> None:
        self._saving.touch(alarm.key)
        state = "alarm.raised" if alarm.until is None else "alarm.over"
        self._saving.event(state, alarm.subject, rule=alarm.rule, label=alarm.label, why=alarm.why)
        tell = _LOG.warning if alarm.until is None else _LOG.info
        tell(state, rule=alarm.rule, subject=alarm.subject, label=alarm.label, why=alarm.why)

    async def _save(self) -> None:
        wall = self._pool.clock.now()
        expired = [silence for silence in self.silences if silence.until <= wall]
        await self._saving.flush(self.alarms, expired)
        if self._pool.store_trouble is not None:
            await self._saving.probe()

    def _tell(self, now: float) -> None:
        due = notices(
            self.alarms, self.silences, self._pool.clock.now(), self._settings.repeat, self._under_way
        )
        if not self._pace.ready(now, waiting=bool(due)):
            return
        self._under_way |= dict.fromkeys((notice.alarm.key for notice in due), due)
        task = asyncio.create_task(self._deliver(due), name="telling")
        self._tellings.add(task)
        task.add_done_callback(self._tellings.discard)

    async def _deliver(self, due: list[Notice]) -> None:
        """Post a message to every target that wants it, and note what of it was told."""
        posts = []
        for courier, least in self.couriers:
            wanted = [notice for notice in due if least in {notice.alarm.severity, Severity.WARNING}]
            if wanted:
                posts.append((wanted, courier.post(note_of(wanted, self._where))))
        asked = {notice.alarm.key for wanted, _ in posts for notice in wanted}
        await self._note_told(due, [notice for notice in due if notice.alarm.key not in asked])
        somebody = not posts
        for ended in asyncio.as_completed([_with(wanted, post) for wanted, post in posts]):
            wanted, taken = await ended
            if taken:
                somebody = True
                await self._note_told(due, wanted)
        self._under_way = {key: of for key, of in self._under_way.items() if of is not due}
        self._pace.went(self._pool.clock.monotonic(), taken=somebody)
        await self._save()

    async def _note_told(self, message: list[Notice], told: list[Notice]) -> None:
        """Note what of a message was told; the first target that takes it counts."""
        news = [notice for notice in told if self._under_way.get(notice.alarm.key) is message]
        for notice in news:
            key = notice.alarm.key
            del self._under_way[key]
            if notice.phase is Phase.OVER:
                self.alarms.told_over(key)
            else:
                self.alarms.told(key, self._pool.clock.now())
            self._saving.touch(key)
        if news:
            await self._save()

    async def shown(self) -> tuple[list[Alarm], list[Silence]]:
        """Return alarms and silences as they are now; where another control looks, as it has kept them."""
        if self._pool.sharing is None or self._pool.epoch is not None:
            return list(self.alarms), self.silences
        async with self._pool.store.read() as reader:
            return list(await reader.alarms()), list(await reader.silences())

    def _note_delivery(self, done: Delivery) -> None:
        self.deliveries.append(done)
        self.tries[done.target, done.outcome.value] += 1
        if done.final and done.outcome is not Outcome.TAKEN:
            self._saving.event("alert.not_delivered", done.target, why=done.why)

    async def test(self, to: str | None = None) -> list[Delivery]:
        """Send a test message to one target, or to all, once, and return how it went.

        Raises NotFoundError where there is no such target, BusyError while another test runs.
        """
        chosen = [courier for courier, _ in self.couriers if to in {None, courier.target}]
        if not chosen:
            names = ", ".join(courier.target for courier, _ in self.couriers)
            raise NotFoundError(f"There is no alert target {to!r}.", remedy=f"There are: {names}.")
        if self._testing.locked():
            raise BusyError("The alert targets are being tested already.")
        note = trial_note(self._where)
        async with self._testing:
            return list(await asyncio.gather(*(courier.try_now(note) for courier in chosen)))


async def _with(wanted: list[Notice], post: asyncio.Future[bool]) -> tuple[list[Notice], bool]:
    return wanted, await post
