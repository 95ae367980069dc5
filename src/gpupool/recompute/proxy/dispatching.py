"""Gives each request to the server that will finish first, and to another one as long as none has answered.

What costs the client nothing here: a server that refuses, closes, resets, answers rubbish or wrong, or says nothing.
A silent server keeps its request while another is asked too; the first answer counts. A server that closes the
connection on a request, or answers it wrong, is blamed only once another has answered that same request, so that a
request which every server chokes on cannot take all of them out of use. A kept connection that its server has just
closed is no fault at all. Asking again is paid from a budget (`Pool.retry`), so that trouble does not multiply load.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

import structlog

from gpupool.balancing import NodeLimits, Outcome, Policy, Pool, Ticket
from gpupool.core.errors import EnvironmentProblemError
from gpupool.recompute.proxy.connecting import NoConnectionError, connect
from gpupool.recompute.proxy.exchanges import Attempt, Exchange, Judgement
from gpupool.recompute.proxy.http_links import HttpLink
from gpupool.recompute.proxy.judging import RIGHT, WRONG
from gpupool.recompute.proxy.links import FrameLink, Link
from gpupool.recompute.proxy.nodes import IDLE_SECONDS, KEPT_IDLE, Directory, Kind, Node
from gpupool.recompute.proxy.requestlog import RequestLog
from gpupool.recompute.proxy.trust import Keyring
from gpupool.recompute.proxy.verdicts import TRUST_AFTER, Judge

CONNECT_SECONDS: Final = 1.5
FIRST_ROUND_SECONDS: Final = 0.1
LONGEST_ROUND_SECONDS: Final = 1.0
MOST_WAITING: Final = 20_000
LEARNED_FACTOR: Final = 4
"""A limit that nobody set for a node may grow to so many times the default."""
BUSY_FADES: Final = 0.97
"""Of the connections kept for a burst, each tick: half of it is gone in half a second."""
_REFUSAL_SECONDS: Final = 0.25
"""Before the deadline, to tell a client what a server refused with and no other one has done."""
_PUMPED_AT_ONCE: Final = 32
# Looking a member up in its enumeration costs as much as a call, so those that every request needs are kept here.
_GOOD: Final = Judgement.GOOD
_BAD: Final = Judgement.BAD
_OK: Final = Outcome.OK
_CANCELLED: Final = Outcome.CANCELLED
log = structlog.get_logger(__name__)


class Dispatcher:
    """All requests of one kind."""

    def __init__(
        self,
        kind: Kind,
        directory: Directory,
        sockets: int,
        request_log: RequestLog,
        clock: Callable[[], float],
        policy: Policy | None = None,
        *,
        keyring: Keyring | None = None,
        judge: Judge | None = None,
    ) -> None:
        """``sockets`` is the limit of a node that names none; ``judge`` checks answers whose content is known."""
        self.kind = kind
        self._frames = kind is Kind.FRAMES
        self._name = kind.value
        self.pool = Pool(policy or Policy())
        self.active: set[Exchange] = set()
        self.has_nodes = False
        """Whether some node is known to take these requests."""
        self._patience = self.pool.policy.silence_floor_s
        """No request is looked at sooner than so long after it was sent: it would be neither silent nor slow."""
        self._kept = float(KEPT_IDLE)
        """Idle connections kept to a node: at least as many as there were requests at once lately, for answers come
        in bursts, and the next requests want their connections."""
        self.results: defaultdict[str, int] = defaultdict(int)
        self._parked: deque[Exchange] = deque()
        self._directory = directory
        self._sockets = sockets
        self._request_log = request_log
        self._clock = clock
        self._keyring = keyring or Keyring(clock)
        self._judge = judge
        self._link_type = FrameLink if kind is Kind.FRAMES else HttpLink
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained: set[str] = set()

    @property
    def waiting(self) -> int:
        """Requests for which there is no node at the moment."""
        return len(self._parked)

    # -- what the fronts ask ---------------------------------------------------------------------------------

    def submit(self, exchange: Exchange) -> None:
        """Begin; the asker hears the end in any case, at the deadline at the latest."""
        if len(self._parked) >= MOST_WAITING:
            exchange.open = False
            self._end(exchange, "-", "overload", exchange.started)
            exchange.asker.give_up(exchange, "too many requests wait already")
            return
        self.active.add(exchange)
        self._kept = max(self._kept, len(self.active))
        ticket = self.pool.send(exchange.started, exchange.measure)
        if ticket is None:
            self._parked.append(exchange)
        else:
            self._put(exchange, self._directory.nodes[ticket.node], ticket, exchange.started)

    def cancel(self, exchange: Exchange) -> None:
        """The client left: what is under way is given up."""
        if exchange.open:
            now = self._clock()
            self._close(exchange, now, Outcome.CANCELLED)
            self._end(exchange, "-", "left", now)

    def set_nodes(self) -> None:
        """Take the directory's nodes of this kind."""
        nodes = self._directory.of_kind(self.kind)
        self.has_nodes = bool(nodes)
        self.pool.set_nodes({node.name: self._limits(node) for node in nodes})
        draining = {node.name for node in nodes if node.wish.draining}
        for name in draining - self._drained:
            self.pool.drain(name)
        for name in (self._drained - draining) & {node.name for node in nodes}:
            self.pool.release(name)
        self._drained = draining
        self.pump(self._clock())

    def _limits(self, node: Node) -> NodeLimits:
        if node.wish.sockets is not None:
            return NodeLimits(node.wish.weight, node.wish.sockets)
        return NodeLimits(node.wish.weight, self._sockets, self._sockets * LEARNED_FACTOR)

    # -- trying ----------------------------------------------------------------------------------------------

    def _advance(self, exchange: Exchange, now: float) -> bool:
        """Ask one more node; park the request where none can be asked and nothing is under way."""
        name = self._pick(exchange, now)
        if name is not None:
            self._try(exchange, self._directory.nodes[name], now)
            return True
        if not exchange.attempts:
            answer = None
            if exchange.tried:
                answer = exchange.settle(alone=not self.pool.serves_beyond(exchange.refusers))
            if answer is not None:
                self._finish(exchange, "-", answer, "refused", now)
                return True
            exchange.look_at = 0.0
            self._parked.append(exchange)
        return False

    def _pick(self, exchange: Exchange, now: float) -> str | None:
        if not exchange.tries:
            return self.pool.pick(now, exchange.measure, exchange.tried)
        held = [attempt.node.name for attempt in exchange.attempts]
        return self.pool.retry(now, exchange.measure, exchange.tried, held)

    def _try(self, exchange: Exchange, node: Node, now: float) -> None:
        ticket = self.pool.started(node.name, now, exchange.measure, again=exchange.tries > 0)
        self._put(exchange, node, ticket, now)

    def _put(self, exchange: Exchange, node: Node, ticket: Ticket, now: float) -> None:
        """Send a request that the pool has counted, on a connection that is there or a new one."""
        attempt = Attempt(exchange, node, ticket, now)
        exchange.attempts.append(attempt)
        exchange.look_at = 0.0 if exchange.tries else min(exchange.deadline, now + self._patience)
        exchange.tried |= node.itself
        exchange.tries += 1
        idle = node.idle
        while idle:
            link = idle.pop()
            if link.kind is self.kind and not link.transport.is_closing():
                attempt.link = link
                link.ask(attempt, exchange.encode(now, node.authorization))
                return
            link.close()
        task = asyncio.get_running_loop().create_task(self._connect(attempt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, attempt: Attempt) -> None:
        node = attempt.node
        try:
            node.authorization = self._keyring.authorization(node.trust)
            link = await connect(node, self._link_type(node, self), self._keyring, CONNECT_SECONDS)
        except (NoConnectionError, EnvironmentProblemError) as error:
            ours = isinstance(error, NoConnectionError) and error.ours
            if attempt in attempt.exchange.attempts and ours:
                self._failed(attempt, "", Outcome.CANCELLED)
            elif attempt in attempt.exchange.attempts:
                self._failed(attempt, str(error), Outcome.FAILED, error.remedy)
            return
        if attempt in attempt.exchange.attempts:
            attempt.link = link
            link.ask(attempt, attempt.exchange.encode(self._clock(), node.authorization))
        else:
            link.close()

    # -- what links tell -------------------------------------------------------------------------------------

    def answered(self, link: Link, attempt: Attempt, reply: object, *, reusable: bool) -> None:
        """Take an answer, give the connection back, and let one that waits go on."""
        now, node = self._clock(), attempt.node
        judgement = attempt.exchange.judge(reply, node)
        attempt.link = None
        room = reusable and len(node.idle) < self._kept and judgement is not _BAD
        if room and node.name in self._directory.nodes:
            link.idle_since = now
            node.idle.append(link)
        else:
            link.close()
        if judgement is not _GOOD:
            self._not_good(attempt, judgement)
        elif self._judge is None or not self._check(self._judge, attempt, reply, now):
            self._good(attempt, reply, now, checked=False)
        if self._parked:
            # One place is free now.
            self.pump(now, 1)

    def _not_good(self, attempt: Attempt, judgement: Judgement) -> None:
        if judgement is Judgement.BUSY:
            self._failed(attempt, "", Outcome.CANCELLED)
        else:
            outcome = Outcome.FAILED if judgement is _BAD else Outcome.WRONG
            self._failed(attempt, attempt.exchange.fault, outcome)

    def _check(self, judge: Judge, attempt: Attempt, reply: object, now: float) -> bool:
        """Have the answer's content checked; False where it counts as it is."""
        exchange, node = attempt.exchange, attempt.node
        evidence = exchange.evidence(reply)
        if evidence is None:
            return False
        path, question, answer = evidence
        trusted = node.right_in_row >= TRUST_AFTER and not exchange.accused
        if not judge.wants(path, trusted=trusted):
            return False
        attempt.answered = now
        judge.ask(path, question, answer, lambda worth, reason: self._judged(attempt, reply, worth, reason))
        return True

    def _judged(self, attempt: Attempt, reply: object, worth: int, reason: str) -> None:
        now, node, exchange = self._clock(), attempt.node, attempt.exchange
        node.right_in_row = 0 if worth == WRONG else node.right_in_row + (worth == RIGHT)
        if attempt not in exchange.attempts:
            return
        if worth != WRONG:
            self._good(attempt, reply, now, checked=worth == RIGHT)
        else:
            exchange.accused += ((node.name, f"it answered wrong: {reason}"),)
            self._failed(attempt, f"it answered wrong: {reason}", Outcome.CANCELLED)
        if self._parked:
            self.pump(now)

    def _good(self, attempt: Attempt, reply: object, now: float, *, checked: bool) -> None:
        exchange, node = attempt.exchange, attempt.node
        exchange.attempts.remove(attempt)
        self.pool.finished(attempt.ticket, attempt.answered or now, _OK)
        node.answered += 1
        if self._frames or not node.certain or node.trouble is not None:
            self._well(node, exchange)
        if exchange.suspects or exchange.accused:
            self._blame_others(exchange, now, checked=checked)
        self._finish(exchange, node.name, exchange.answer(reply), "ok", now)

    def broke(self, link: Link, attempt: Attempt, why: str) -> None:
        """Take that a connection ended; see the module on who is to blame."""
        if link.uses > 1:
            attempt.node.close_idle()
            attempt.exchange.tried -= {attempt.node.name}
            self._failed(attempt, "", Outcome.CANCELLED)
        else:
            attempt.exchange.suspects += (attempt.node.name,)
            self._failed(attempt, why, Outcome.CANCELLED)
        if self._parked:
            self.pump(self._clock())

    def _failed(self, attempt: Attempt, why: str, outcome: Outcome, remedy: str | None = None) -> None:
        now, exchange = self._clock(), attempt.exchange
        exchange.attempts.remove(attempt)
        self.pool.finished(attempt.ticket, now, outcome)
        if why:
            self._unwell(attempt.node, why, remedy)
        if not exchange.attempts:
            exchange.next_round = now + min(FIRST_ROUND_SECONDS * 2**exchange.rounds, LONGEST_ROUND_SECONDS)
            self._advance(exchange, now)

    # -- ends ------------------------------------------------------------------------------------------------

    def _finish(self, exchange: Exchange, node: str, answer: bytes, result: str, now: float) -> None:
        exchange.open = False
        self.active.discard(exchange)
        if exchange.attempts:
            self._abandon(exchange, now, _CANCELLED)
        self._end(exchange, node, result, now)
        exchange.asker.reply(exchange, answer)

    def _close(self, exchange: Exchange, now: float, outcome: Outcome) -> None:
        """End every attempt; one that was silent for too long is told so to the pool whatever ``outcome``."""
        exchange.open = False
        self.active.discard(exchange)
        if exchange.attempts:
            self._abandon(exchange, now, outcome)

    def _abandon(self, exchange: Exchange, now: float, outcome: Outcome) -> None:
        for attempt in exchange.attempts:
            silent = self._is_silent(attempt, now)
            self.pool.finished(attempt.ticket, now, Outcome.TIMED_OUT if silent else outcome)
            if silent:
                self._unwell(attempt.node, f"silent for {now - attempt.started:.1f} s")
            if attempt.link is not None:
                attempt.link.close()
        exchange.attempts = []

    def _end(self, exchange: Exchange, node: str, result: str, now: float) -> None:
        self.results[result] += 1
        took = (now - exchange.started) * 1000
        self._request_log.forwarded(
            (exchange.asker.peer, node, exchange.id, self._name, took, result, exchange.tries, now)
        )

    def _blame_others(self, exchange: Exchange, now: float, *, checked: bool) -> None:
        """Blame those that failed on a request that has an answer now; for a wrong one, only where that is checked."""
        for name in exchange.suspects:
            self._blame(exchange, name, now, Outcome.FAILED, "")
        if checked:
            for name, why in exchange.accused:
                self._blame(exchange, name, now, Outcome.WRONG, why)

    def _blame(self, exchange: Exchange, name: str, now: float, outcome: Outcome, why: str) -> None:
        node = self._directory.nodes.get(name)
        if node is not None and self.kind in node.kinds and node.refused is None:
            ticket = self.pool.started(name, now, exchange.measure, again=True)
            self.pool.finished(ticket, now, outcome, why)
            if why:
                self._unwell(node, why, None)

    def _well(self, node: Node, exchange: Exchange) -> None:
        node.certain = True
        if self._frames and not node.last_frame:
            node.last_frame = exchange.encode(0)
        if node.trouble is not None:
            node.trouble = None
            log.info("node_back", node=node.name)

    def _unwell(self, node: Node, why: str, remedy: str | None = None) -> None:
        node.failed += 1
        if node.trouble is None:
            node.trouble = why
            log.warning(
                "node_failed", node=node.name, why=why, **({} if remedy is None else {"remedy": remedy})
            )

    # -- time ------------------------------------------------------------------------------------------------

    def _is_silent(self, attempt: Attempt, now: float) -> bool:
        if attempt.answered is not None:
            return False
        waited = now - attempt.started
        return waited >= self.pool.policy.silence_floor_s and waited >= self.pool.silence_limit(
            attempt.node.name, attempt.exchange.measure, now
        )

    def sweep(self, now: float) -> None:
        """Look for requests past their deadline, and for silent nodes; called some ten times a second."""
        hedges: dict[str, float | None] = {}
        self._kept = max(KEPT_IDLE, len(self.active), self._kept * BUSY_FADES)
        for exchange in [exchange for exchange in self.active if exchange.look_at <= now]:
            if now >= exchange.deadline or (exchange.refusers and now >= _last_moment(exchange)):
                self._expire(exchange, now)
            elif exchange.attempts:
                self._watch(exchange, now, hedges)
        self._patience = self.pool.watch_after()
        self.pump(now)
        if self._judge is not None:
            self._judge.sweep(now)
        for node in self._directory.nodes.values():
            node.close_idle(older_than=now - IDLE_SECONDS)

    def _watch(self, exchange: Exchange, now: float, hedges: dict[str, float | None]) -> None:
        """Ask another node too where the last one asked is silent, or slower than nearly all others."""
        if self._is_silent(exchange.attempts[-1], now):
            self._advance(exchange, now)
        elif len(exchange.attempts) == 1 and exchange.tries == 1 and exchange.attempts[0].answered is None:
            measure = exchange.measure
            if measure not in hedges:
                hedges[measure] = self.pool.hedge_after(now, measure)
            after = hedges[measure]
            slow = after is not None and now - exchange.attempts[0].started > after
            if slow and self.pool.hedges.available(now):
                self._hedge(exchange, now)

    def _hedge(self, exchange: Exchange, now: float) -> None:
        """A hedge has a budget of its own."""
        name = self.pool.pick(now, exchange.measure, exchange.tried)
        if name is not None and self.pool.hedges.take(now):
            self._try(exchange, self._directory.nodes[name], now)

    def _expire(self, exchange: Exchange, now: float) -> None:
        word = exchange.last_word()
        if word is not None:
            self._finish(exchange, "-", word, "refused", now)
            return
        self._close(exchange, now, Outcome.CANCELLED)
        self._end(exchange, "-", "deadline", now)
        exchange.asker.give_up(exchange, "no server answered in time")

    def pump(self, now: float, most: int = _PUMPED_AT_ONCE) -> None:
        """Let requests that wait for a node go on, oldest first, ``most`` at once.

        One that was sent before and waits for the budget of retries keeps its place and holds up nobody.
        """
        unpaid: list[Exchange] = []
        for _ in range(min(len(self._parked), _PUMPED_AT_ONCE)):
            exchange = self._parked.popleft()
            if not exchange.open:
                continue
            if exchange.tried and now >= exchange.next_round:
                exchange.tried, exchange.rounds = frozenset(), exchange.rounds + 1
            if self._go_on(exchange, now):
                most -= 1
                if most == 0:
                    break
            elif exchange.tried:
                self._parked.append(exchange)
            elif exchange.tries and self.pool.pick(now, exchange.measure) is not None:
                unpaid.append(exchange)
            else:
                self._parked.appendleft(exchange)
                break
        self._parked.extendleft(reversed(unpaid))

    def _go_on(self, exchange: Exchange, now: float) -> bool:
        """Send a request that waited, if some node takes it now."""
        if not exchange.tries:
            ticket = self.pool.send(now, exchange.measure)
            if ticket is not None:
                self._put(exchange, self._directory.nodes[ticket.node], ticket, now)
            return ticket is not None
        name = self._pick(exchange, now)
        if name is not None:
            self._try(exchange, self._directory.nodes[name], now)
        return name is not None


def _last_moment(exchange: Exchange) -> float:
    """Return when what a server refused with is passed on at the latest, so that it comes in time."""
    return exchange.deadline - min(_REFUSAL_SECONDS, 0.1 * (exchange.deadline - exchange.started))
