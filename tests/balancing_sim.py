"""A discrete-event simulation of clients, a balancing pool and servers that queue, die, hang and come back.

Time is a number that jumps from event to event, so minutes of traffic take a moment and every run is the same.
The middle part does what a proxy does: asks the pool, sets timers, retries elsewhere, hedges, probes.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gpupool.balancing import NodeLimits, Outcome, Policy, Pool, Ticket

DEADLINE_S = 4.5
REFUSAL_S = 0.001


class Server:
    """A server with ``places`` that each take ``seconds`` a request, give or take a tenth; more requests queue."""

    def __init__(self, seconds: float, places: int = 1) -> None:
        self.seconds = seconds
        self.free = [0.0] * places
        self.up = True
        self.hung = False
        self.faulty = False
        """Passes every probe and fails every request."""
        self.running: set[Attempt] = set()
        self.most = 0


@dataclass(eq=False)
class Attempt:
    request: "Request"
    ticket: Ticket
    open: bool = True


@dataclass(eq=False)
class Request:
    begun: float
    kind: str = ""
    tried: frozenset[str] = frozenset()
    attempts: list[Attempt] = field(default_factory=list)
    open: bool = True


@dataclass(frozen=True)
class Result:
    begun: float
    ended: float
    node: str | None

    @property
    def latency(self) -> float:
        return self.ended - self.begun


class Simulation:
    """Closed-loop clients against ``servers``; ``results`` has one entry per request."""

    def __init__(
        self, servers: dict[str, Server], limits: NodeLimits | dict[str, NodeLimits] | None = None,
        policy: Policy | None = None, hedging: bool = True,
    ) -> None:  # fmt: skip
        self.servers = servers
        self.pool = Pool(policy)
        limits = limits or NodeLimits()
        self.limits = limits if isinstance(limits, dict) else dict.fromkeys(servers, limits)
        self.pool.set_nodes(self.limits)
        self.hedging = hedging
        self.honest_probes = True
        self.now = 0.0
        self.results: list[Result] = []
        self.sent = dict.fromkeys(servers, 0)
        self.sent_at: list[tuple[float, str]] = []
        self.random = random.Random(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._waiting: deque[Request] = deque()
        self._number = 0
        self._stop_at = 0.0
        self.at(0.05, self._probe)

    def at(self, when: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, act))

    def run(self, clients: int, until: float) -> None:
        """Let ``clients`` ask one request after another until time ``until``, then let the last ones end."""
        self._stop_at = until
        for index in range(clients):
            self.at(self.now + index * 1e-4, self._ask)
        while self._events and self._events[0][0] < until + 2 * DEADLINE_S:
            self.now, _, act = heapq.heappop(self._events)
            act()

    def kill(self, name: str) -> None:
        server = self.servers[name]
        server.up = False
        server.free = [0.0] * len(server.free)
        for attempt in list(server.running):
            self._end(attempt, Outcome.FAILED)

    def revive(self, name: str) -> None:
        server = self.servers[name]
        server.up, server.hung = True, False
        server.free = [self.now] * len(server.free)

    def hang(self, name: str) -> None:
        self.servers[name].hung = True

    def finished(self, begun_from: float = 0.0, until: float = float("inf")) -> list[Result]:
        return [result for result in self.results if begun_from <= result.begun < until]

    def rate(self, begin: float, end: float, node: str | None = None) -> float:
        done = [r for r in self.results if begin <= r.ended < end and (node is None or r.node == node)]
        return len(done) / (end - begin)

    @property
    def lost(self) -> int:
        return sum(result.node is None for result in self.results)

    def _ask(self) -> None:
        if self.now < self._stop_at:
            request = Request(self.now)
            self.at(self.now + DEADLINE_S, lambda: self._deadline(request))
            # First come, first served: nobody overtakes those who wait.
            if self._waiting:
                self._waiting.append(request)
            else:
                self._attempt(request)

    def _attempt(self, request: Request) -> None:
        if request.attempts:
            held = [attempt.ticket.node for attempt in request.attempts if attempt.open]
            name = self.pool.retry(self.now, request.kind, request.tried, held)
        else:
            name = self.pool.pick(self.now, request.kind, request.tried)
        if name is None:
            request.tried = frozenset()
            self._waiting.appendleft(request)
            return
        self._send(request, name)
        wait = self.pool.hedge_after(self.now, request.kind)
        if self.hedging and wait is not None and len(request.attempts) == 1:
            self.at(self.now + wait, lambda: self._hedge(request))

    def _send(self, request: Request, name: str) -> None:
        attempt = Attempt(
            request, self.pool.started(name, self.now, request.kind, again=bool(request.attempts))
        )
        request.attempts.append(attempt)
        self.sent[name] += 1
        self.sent_at.append((self.now, name))
        server = self.servers[name]
        server.running.add(attempt)
        server.most = max(server.most, len(server.running))
        patience = self.pool.silence_limit(name, request.kind, self.now)
        self.at(self.now + patience, lambda: self._end(attempt, Outcome.TIMED_OUT))
        if not server.up or server.faulty:
            self.at(self.now + REFUSAL_S, lambda: self._end(attempt, Outcome.FAILED))
        elif not server.hung:
            place = min(range(len(server.free)), key=server.free.__getitem__)
            begin = max(self.now, server.free[place])
            server.free[place] = begin + server.seconds * self.random.uniform(0.9, 1.1)
            self.at(server.free[place], lambda: self._answer(attempt))

    def _answer(self, attempt: Attempt) -> None:
        if not self.servers[attempt.ticket.node].hung:
            self._end(attempt, Outcome.OK)

    def _hedge(self, request: Request) -> None:
        if not request.open:
            return
        busy = request.tried | {attempt.ticket.node for attempt in request.attempts}
        name = self.pool.pick(self.now, request.kind, busy)
        if name is not None and self.pool.hedges.take(self.now):
            self._send(request, name)

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        if not attempt.open:
            return
        request = attempt.request
        self._close(attempt, outcome)
        if outcome is not Outcome.OK:
            request.tried |= {attempt.ticket.node}
            if not any(other.open for other in request.attempts):
                self._attempt(request)
            return
        self._finish(request, attempt.ticket.node)

    def _close(self, attempt: Attempt, outcome: Outcome) -> None:
        attempt.open = False
        self.servers[attempt.ticket.node].running.discard(attempt)
        self.pool.finished(attempt.ticket, self.now, outcome)
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            self.at(self.now, self._serve_waiting)

    def _serve_waiting(self) -> None:
        unpaid: list[Request] = []
        while self._waiting:
            request = self._waiting.popleft()
            self._attempt(request)
            if self._waiting and self._waiting[0] is request:
                if not request.attempts or self.pool.pick(self.now, request.kind) is None:
                    break
                # It waits for the budget only, and holds up nobody.
                unpaid.append(self._waiting.popleft())
        self._waiting.extendleft(reversed(unpaid))

    def _finish(self, request: Request, node: str | None) -> None:
        request.open = False
        for other in request.attempts:
            if other.open:
                self._close(other, Outcome.CANCELLED)
        self.results.append(Result(request.begun, self.now, node))
        self._ask()

    def _deadline(self, request: Request) -> None:
        if request.open:
            if request in self._waiting:
                self._waiting.remove(request)
            self._finish(request, None)

    def _probe(self) -> None:
        for name in self.pool.due_probes(self.now):
            server = self.servers[name]
            self.pool.probed(name, self.now, server.up and not (server.hung and self.honest_probes))
        self._wake()
        self.at(self.now + 0.05, self._probe)
