"""Who asked how much and who answered how well: the counts behind `top`, `clients`, metrics, history and alerts.

Requests are counted many at once (`Tallies.take`), which only adds to numbers; rates, minutes and hours are
worked out from them once a second and once a minute. Clients are told apart by address. There is a limit on how many
are remembered: the ones least worth keeping (never regular, silent for longest) give way, so that a stranger who
calls from ever new addresses cannot push the farm's harvesters out.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from gpupool.recompute.proxy.history import History
from gpupool.recompute.proxy.shim_reports import ShimTally

CLIENTS_KEPT: Final = 1024
NODES_KEPT: Final = 256
GOOD: Final = "ok"
LEFT: Final = "left"
"""The client closed before there was an answer: no failure of ours, and no answer either."""
BOUNDS_MS: Final = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000)
"""Upper edges of the latency histogram; one more bucket holds the rest."""
REGULAR_MINUTES: Final = 5
"""A client that asked in so many different minutes is regular: its silence means something."""
SILENT_FACTOR: Final = 10.0
"""A regular client is silent after so many times its usual pause, but never before the floor."""
_PAUSE_S: Final = 1.0
"""What comes closer together is one burst, not a rhythm."""
_RATE_GAIN: Final = 0.2


Ended = tuple[str, str, str, str, float, str, int, float]
"""How a request ended: client, node, request id, kind, milliseconds, result, tries, and when (monotonic)."""


class Tally:
    """Numbers of one node; all but `rate` only ever grow."""

    __slots__ = (
        "_minute", "_second", "buckets", "failed", "history", "last", "rate", "requests", "total_ms", "worst_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = 0
        self.failed = 0
        self.total_ms = 0.0
        self.worst_ms = 0.0
        """Slowest good answer since the last minute ended."""
        self.last = 0.0
        """When a request last ended, monotonic seconds; 0 = never in this process."""
        self.rate = 0.0
        """Requests per second lately."""
        self.buckets = [0] * (len(BOUNDS_MS) + 1)
        """Good answers by latency; not filled for clients."""
        self.history = History()
        self._second = 0
        self._minute = (0, 0, 0.0)

    def follow(self, earlier: "Tally") -> None:
        """Add the numbers of an earlier process: neither rate nor history count them again."""
        requests, failed, total = self._minute
        self.requests += earlier.requests
        self.failed += earlier.failed
        self.history = earlier.history
        self._second += earlier.requests
        self._minute = (requests + earlier.requests, failed + earlier.failed, total)

    def second(self, seconds: float) -> None:
        """Follow the rate; called about once a second with the time since the last call."""
        self.rate += _RATE_GAIN * ((self.requests - self._second) / seconds - self.rate)
        self._second = self.requests

    def minute(self, wall: float) -> bool:
        """Put what came since the last call into the history; tell whether there was anything."""
        requests, failed, total = self._minute
        if self.requests == requests:
            return False
        self.history.add(
            wall, self.requests - requests, self.failed - failed, self.total_ms - total, self.worst_ms
        )
        self._minute = (self.requests, self.failed, self.total_ms)
        self.worst_ms = 0.0
        return True


class ClientTally(Tally):
    """Numbers of one client; ``first`` and ``seen`` are wall times, as they outlive the process."""

    __slots__ = ("first", "frames", "http", "left", "minutes", "pause", "refused", "seen", "shim")

    def __init__(self, wall: float) -> None:
        super().__init__()
        self.first = wall
        self.seen = wall
        """When it last asked, for clients of an earlier process; `last` counts once there is one."""
        self.frames = 0
        self.http = 0
        self.left = 0
        """Requests that it gave up itself; they are not among `requests`."""
        self.refused = 0
        """Requests that no node could have taken; neither are they."""
        self.minutes = 0
        """Different minutes in which it asked."""
        self.pause = 0.0
        """Usual seconds between two bursts; 0 = not known."""
        self.shim: ShimTally | None = None
        """What its stock harvesters have lost, where they have our library."""

    @property
    def regular(self) -> bool:
        """Say whether its silence would mean something."""
        return self.minutes >= REGULAR_MINUTES

    def silent_after(self, floor: float) -> float:
        """Return the seconds without a request after which it counts as silent."""
        return max(floor, SILENT_FACTOR * self.pause)

    def heard(self, now: float, floor: float) -> None:
        """Learn from the pause that ends ``now``; a long absence teaches no more than silence would have shown."""
        gap = now - self.last
        if gap >= _PAUSE_S and self.last:
            gap = min(gap, self.silent_after(floor))
            self.pause = self.pause + 0.1 * (gap - self.pause) if self.pause else gap
        self.last = now

    def follow(self, earlier: Tally) -> None:
        """Add what an earlier process knew of this client, its rhythm too."""
        super().follow(earlier)
        if isinstance(earlier, ClientTally):
            self.first, self.seen = min(self.first, earlier.first), earlier.seen
            self.frames += earlier.frames
            self.http += earlier.http
            self.left += earlier.left
            self.refused += earlier.refused
            self.minutes += earlier.minutes
            self.pause = earlier.pause
            if earlier.shim is not None:
                self.shim = self.shim or ShimTally()
                self.shim.follow(earlier.shim)

    def minute(self, wall: float) -> bool:
        """Count a minute in which it asked, too."""
        active = super().minute(wall)
        self.minutes += active
        return active


class Tallies:
    """All of them."""

    def __init__(self, silent_floor: float, wall: Callable[[], float] = time.time) -> None:
        """``silent_floor``: a client silent for fewer seconds is never called so; ``wall`` tells the wall time."""
        self.silent_floor = silent_floor
        self.wall = wall
        self.clients: dict[str, ClientTally] = {}
        self.nodes: dict[str, Tally] = {}
        self.kinds: dict[str, Tally] = {}
        self.attempts: dict[str, int] = {}
        """Kind -> questions put to nodes, first tries, hedges and retries together."""
        self._extras: dict[str, int] = {}
        self._retries: dict[str, int] = {}
        self.refused_count = 0
        """Requests of a protocol that no node speaks."""
        self.shim_losses = {"qualities": 0, "proofs": 0, "fallbacks": 0}
        """What harvesters with our library have lost since this process began to hear of it."""
        self.forgotten = 0
        """Clients that gave way to others."""

    def take(self, ended: Sequence[Ended]) -> None:
        """Count ends of requests, all of about the same time; the good ones of a client and a node are added at once."""
        good: dict[tuple[str, str, str], list[float]] = {}
        for client, node, _, kind, milliseconds, result, tries, now in ended:
            if result != GOOD or tries != 1:
                self.ended(client, node, kind, milliseconds, result, tries, now)
            elif (times := good.get((client, node, kind))) is not None:
                times.append(milliseconds)
            else:
                good[client, node, kind] = [milliseconds]
                self._hear(client, now)
        for (client, node, kind), times in good.items():
            self.attempts[kind] = self.attempts.get(kind, 0) + len(times)
            self._add(self.client(client), node, kind, times, ended[-1][-1])

    def ended(
        self, client: str, node: str, kind: str, milliseconds: float, result: str, tries: int, now: float
    ) -> None:
        """Count a request's end; ``node`` answered it, or ``-``."""
        asked = self._hear(client, now)
        self.attempts[kind] = self.attempts.get(kind, 0) + tries
        if tries > 1:
            self._extras[kind] = self._extras.get(kind, 0) + tries - 1
        if result == LEFT:
            asked.left += 1
        elif result == GOOD:
            self._add(asked, node, kind, [milliseconds], now)
        else:
            for tally in (asked, self._whole(asked, kind, 1)):
                tally.requests += 1
                tally.failed += 1

    def _hear(self, client: str, now: float) -> ClientTally:
        asked = self.clients.get(client) or self.client(client)
        if now - asked.last >= _PAUSE_S:
            asked.heard(now, self.silent_floor)
        else:
            asked.last = now
        return asked

    def _whole(self, asked: ClientTally, kind: str, count: int) -> Tally:
        if kind == "frames":
            asked.frames += count
        else:
            asked.http += count
        return self.kinds.get(kind) or self.kinds.setdefault(kind, Tally())

    def _add(self, asked: ClientTally, node: str, kind: str, times: list[float], now: float) -> None:
        """Count good answers that took ``times`` (ms)."""
        whole, answered = self._whole(asked, kind, len(times)), self.node(node)
        asked.last = answered.last = now
        total, worst = sum(times), max(times)
        for tally in (asked, whole, answered):
            tally.requests += len(times)
            tally.total_ms += total
            tally.worst_ms = max(tally.worst_ms, worst)
        for milliseconds in times:
            bucket = bisect_left(BOUNDS_MS, milliseconds)
            whole.buckets[bucket] += 1
            answered.buckets[bucket] += 1

    def refused(self, client: str, now: float) -> None:
        """Count a request for which the proxy has no node of the right kind."""
        asked = self.client(client)
        asked.refused += 1
        self.refused_count += 1
        asked.heard(now, self.silent_floor)

    def shim(self, client: str, value: bytes, now: float) -> bool:
        """Take what the library in a harvester's process says it has lost; False: that is no report, said first now."""
        asked = self.client(client)
        if asked.shim is None:
            asked.shim = ShimTally()
        grown = asked.shim.take(value, now)
        if grown is None:
            known, asked.shim.ignored = asked.shim.ignored, True
            return known
        self.shim_losses["qualities"] += grown.qualities
        self.shim_losses["proofs"] += grown.proofs
        self.shim_losses["fallbacks"] += grown.fallbacks
        return True

    def silent(self, now: float, began: float) -> dict[str, float]:
        """Return the regular clients that are silent -> for how many seconds; ``began``: when they could first call."""
        found = {}
        for address, tally in self.clients.items():
            quiet = now - max(tally.last, began)
            if quiet > self.silent_floor and tally.regular and quiet > tally.silent_after(self.silent_floor):
                found[address] = quiet
        return found

    def retries(self, kind: str, hedges: int) -> int:
        """Return the questions put to another node that were no hedges; never less than the last time."""
        found = max(self._retries.get(kind, 0), self._extras.get(kind, 0) - hedges)
        self._retries[kind] = found
        return found

    def failed_attempts(self, node: str, count: int) -> None:
        """Count attempts that a node failed; what it answers is counted by `ended`."""
        tally = self.node(node)
        tally.requests += count
        tally.failed += count

    def client(self, address: str) -> ClientTally:
        """Return the tally of a client, made if need be; others give way beyond the limit."""
        found = self.clients.get(address)
        if found is None:
            if len(self.clients) >= CLIENTS_KEPT:
                self._forget_clients()
            found = self.clients[address] = ClientTally(self.wall())
        return found

    def node(self, name: str) -> Tally:
        """Return the tally of a node, made if need be; the one that answered longest ago gives way."""
        found = self.nodes.get(name)
        if found is None:
            if len(self.nodes) >= NODES_KEPT:
                del self.nodes[min(self.nodes, key=lambda name: self.nodes[name].last)]
            found = self.nodes[name] = Tally()
        return found

    def follow(self, earlier: "Tallies") -> None:
        """Add what an earlier process of this proxy has counted."""
        for address, client in earlier.clients.items():
            self.client(address).follow(client)
        for name, node in earlier.nodes.items():
            self.node(name).follow(node)

    def second(self, seconds: float) -> None:
        """Follow all rates."""
        for tally in self._all():
            tally.second(seconds)

    def minute(self, wall: float) -> None:
        """End a minute for all, at the wall time ``wall``."""
        for tally in self._all():
            tally.minute(wall)

    def _all(self) -> Iterator[Tally]:
        return chain(self.clients.values(), self.nodes.values(), self.kinds.values())

    def _forget_clients(self) -> None:
        worth = sorted(
            self.clients,
            key=lambda name: (self.clients[name].regular, self.clients[name].last, self.clients[name].seen),
        )
        for address in worth[: CLIENTS_KEPT // 16]:
            del self.clients[address]
            self.forgotten += 1
