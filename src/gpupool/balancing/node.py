"""One node as the pool sees it: what it is doing, how fast it is, and what a further request would cost there."""

from gpupool.balancing.health import Health
from gpupool.balancing.learned_limit import LearnedLimit
from gpupool.balancing.policy import Policy
from gpupool.balancing.speed import Speed
from gpupool.balancing.terms import NodeLimits, NodeState, NodeView, Outcome

NEVER = float("inf")
# Looking a member up in its enumeration takes as long as a request's arithmetic here.
_OK = Outcome.OK
_FAILED = Outcome.FAILED
_SUSPECT_PENALTY = 8.0


class Ticket:
    """A request under way at a node; made by `Pool.started`, handed back once to `Pool.finished`."""

    __slots__ = ("kind", "load", "node", "open", "place", "rank", "started", "unit")

    def __init__(self, place: "Node", kind: str, started: float, load: float, unit: float) -> None:
        self.place = place
        self.node = place.name
        self.kind = kind
        self.started = started
        self.load = load
        self.unit = unit
        self.rank = place.outstanding
        self.open = True


class Node:
    """The state of one node."""

    __slots__ = (
        "_policy", "answered_at", "busy_since", "counts", "health", "learned", "limits", "listed", "name", "outstanding",
        "running", "speeds", "suspect", "tried_at",
    )  # fmt: skip

    def __init__(self, name: str, limits: NodeLimits, policy: Policy, joined_at: float | None) -> None:
        self.name = name
        self._policy = policy
        self.health = Health(policy, joined_at)
        self.outstanding = 0
        self.running: dict[str, int] = {}
        self.speeds: dict[str, Speed] = {}
        self.counts = dict.fromkeys(Outcome, 0)
        self.busy_since = 0.0
        self.suspect = False
        self.tried_at = -NEVER
        self.answered_at = -NEVER
        self.listed = True
        self.learned: LearnedLimit | None = None
        self.limits = limits
        self.set_limits(limits)

    def set_limits(self, limits: NodeLimits) -> None:
        """Take new limits; what was learned is kept when the frame it was learned in stays."""
        if limits == self.limits and self.learned is not None:
            return
        self.limits = limits
        self.learned = None
        if limits.concurrency is not None and limits.learn_up_to is not None:
            self.learned = LearnedLimit(limits.concurrency, limits.learn_up_to)

    @property
    def limit(self) -> int | None:
        """Return the most requests at once; None = no limit."""
        return self.limits.concurrency if self.learned is None else self.learned.current

    @property
    def has_room(self) -> bool:
        """Say whether its limit allows one more request."""
        limit = self.limit
        return limit is None or self.outstanding < limit

    def unit(self, kind: str, guess: float, now: float) -> float:
        """Return seconds per request of ``kind``; ``guess`` where it is not known or not known any more."""
        speed = self.speeds.get(kind)
        if speed is None or not speed.count:
            return guess
        if self.outstanding or now - speed.at < self._policy.probe_interval_s:
            return speed.unit
        # What is only known as "slower than that" is worth another look sooner.
        if speed.doubted or now - speed.at > self._policy.stale_after_s:
            return min(guess, speed.unit)
        return speed.unit

    def work_ahead(self, kind: str, unit: float) -> float:
        """Return the seconds of all it is doing now, with ``unit`` for requests of ``kind`` and for unknown ones."""
        ahead = 0.0
        for other, count in self.running.items():
            speed = self.speeds.get(other) if other != kind else None
            ahead += count * (speed.unit if speed is not None and speed.count else unit)
        return ahead

    def price(self, kind: str, guess: float, now: float) -> tuple[float, float, float]:
        """Return what one more request of ``kind`` would cost, and the `unit` and load that this comes from.

        The cost is the weighted seconds after which it would finish, infinite where none is taken; the load is all
        work then, itself too, in requests of its kind.
        """
        health, count = self.health, self.outstanding
        speed = self.speeds.get(kind)
        unit = speed.unit if count and speed is not None and speed.count else self.unit(kind, guess, now)
        load = 1.0 + count
        if unit > 0 and self.running.get(kind, 0) != count:
            load = 1.0 + self.work_ahead(kind, unit) / unit
        allowed = self.limits.concurrency if self.learned is None else self.learned.current
        if health.starting_at is not None:
            allowed = health.allowance(now, allowed)
        if not health.serving or (allowed is not None and count >= allowed):
            return NEVER, unit, load
        seconds = unit * load if unit > 0 else self.work_ahead(kind, unit)
        cost = seconds * health.penalty / self.limits.weight
        return cost * _SUSPECT_PENALTY if self.suspect else cost, unit, load

    def bare_cost(self, kind: str, guess: float, now: float) -> float:
        """Return the cost of `price` without asking whether it takes requests."""
        unit = self.unit(kind, guess, now)
        cost = (self.work_ahead(kind, unit) + unit) * self.health.penalty / self.limits.weight
        return cost * _SUSPECT_PENALTY if self.suspect else cost

    def start(self, kind: str, unit: float, load: float, now: float) -> Ticket:
        """Count one more request; ``unit`` and ``load`` as of `price`."""
        if not self.outstanding:
            self.busy_since = now
        self.outstanding += 1
        self.running[kind] = self.running.get(kind, 0) + 1
        return Ticket(self, kind, now, load, unit)

    def proven(self, now: float) -> bool:
        """Say whether it has answered of late and nothing has gone wrong since."""
        health = self.health
        return health.serving and not health.failures and now - self.answered_at <= self._policy.lately_s

    def finish(self, ticket: Ticket, now: float, outcome: Outcome, why: str = "") -> bool:
        """Count one request less and learn from how it ended; tell whether its time was taken in."""
        kind, running = ticket.kind, self.running
        self.outstanding -= 1
        left = running[kind] = running[kind] - 1
        if not left:
            del running[kind]
        self.counts[outcome] += 1
        if outcome is not _OK:
            self._learn(ticket, max(0.0, now - ticket.started), now, outcome)
            if ticket.started >= self.health.back_at and self.health.record(outcome, now, why):
                self.forget_speed()
            return False
        self.answered_at = now
        self.suspect = False
        speed = self.speeds.get(kind)
        news = speed is None or now - speed.at >= self._policy.learn_every_s
        if news:
            self._learn_answer(ticket, max(0.0, now - ticket.started), now)
        if self.health.answered(now):
            self.forget_speed()
        return news

    def _learn_answer(self, ticket: Ticket, elapsed: float, now: float) -> None:
        speed = self.speeds.get(ticket.kind)
        if speed is None:
            speed = self.speeds[ticket.kind] = Speed()
        self.suspect = False
        speed.answered(elapsed, ticket.load, now)
        if self.learned is not None:
            self.learned.observe(elapsed, ticket.rank)

    def _learn(self, ticket: Ticket, elapsed: float, now: float, outcome: Outcome) -> None:
        if outcome is Outcome.WRONG:
            self._learn_answer(ticket, elapsed, now)
        elif outcome is not _FAILED:
            speed = self.speeds.get(ticket.kind)
            if speed is None:
                speed = self.speeds[ticket.kind] = Speed()
            speed.unfinished(elapsed, ticket.load, now, ticket.unit)
            if self.learned is not None and outcome is Outcome.TIMED_OUT:
                self.learned.back_off()

    def forget_speed(self) -> None:
        """Measure anew after an absence."""
        for speed in self.speeds.values():
            speed.forget_speed()

    def p99(self, kind: str) -> float | None:
        """Return the 99th percentile of seconds of ``kind`` at the present load; None when not measured."""
        speed = self.speeds.get(kind)
        if speed is None or not speed.count:
            return None
        return speed.p99_at(self.work_ahead(kind, speed.unit) / speed.unit if speed.unit > 0 else 1.0)

    def tick(self, now: float) -> None:
        """Notice what only time shows: a quarantine that ends, a node that has gone quiet with work to do."""
        self.health.tick(now)
        self.suspect = False
        if self.outstanding:
            since = max(self.busy_since, self.health.heard or 0.0)
            policy = self._policy
            longest = max(
                self.p99(kind) or policy.first_silence_s / policy.silence_factor for kind in self.running
            )
            self.suspect = now - since > max(policy.silence_floor_s, policy.silence_factor * longest) / 2

    def view(self) -> NodeView:
        """Return how it stands."""
        busiest = max(self.speeds.values(), key=lambda speed: speed.histogram.total, default=None)
        known = busiest if busiest is not None and busiest.count else None
        return NodeView(
            name=self.name,
            state=self.health.state if self.listed else NodeState.LEAVING,
            reason=self.health.reason,
            weight=self.limits.weight,
            outstanding=self.outstanding,
            limit=self.limit,
            latency=known.latency if known else None,
            p50=known.histogram.quantile(0.5) if known else None,
            p99=known.histogram.quantile(0.99) if known else None,
            slow=any(speed.slow for speed in self.speeds.values()),
            failures_in_row=self.health.failures,
            counts=dict(self.counts),
        )
