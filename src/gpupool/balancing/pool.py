"""The pool: which node gets the next request, and what was learned from the last one.

It does nothing by itself: no sockets, no tasks, no clock. Whoever owns the connections tells it what starts and
how it ends, with the monotonic time, and asks. Costs are kept per kind and node and worked out again only where
something changed, because the question comes with every request.
"""

from collections.abc import Iterable, Mapping

from gpupool.balancing.budget import RetryBudget
from gpupool.balancing.histogram import DecayingHistogram
from gpupool.balancing.node import NEVER, Node, Ticket
from gpupool.balancing.policy import Policy
from gpupool.balancing.terms import NodeLimits, NodeView, Outcome

OTHER_KINDS = "(other)"
_TICK_S = 0.1
_ENOUGH_FOR_HEDGING = 20.0


class _Board:
    """The cost of one more request of one kind at each node, in the order of the pool's list."""

    __slots__ = ("costs", "dirty", "guess", "histogram", "kind", "loads", "units")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.costs: list[float] = []
        self.units: list[float] = []
        self.loads: list[float] = []
        """What each cost comes from; see `Node.price`."""
        self.dirty: set[int] = set()
        self.guess = 0.0
        self.histogram = DecayingHistogram()

    def renew(self, nodes: list[Node], policy: Policy, now: float) -> None:
        known = [
            speed.unit
            for node in nodes
            if node.health.serving and (speed := node.speeds.get(self.kind)) is not None and speed.count
        ]
        self.guess = min(known, default=policy.first_guess_s)
        self.costs, self.units, self.loads = ([0.0] * len(nodes) for _ in range(3))
        self.dirty = set(range(len(nodes)))
        self.settle(nodes, now)

    def settle(self, nodes: list[Node], now: float) -> None:
        for index in self.dirty:
            self.costs[index], self.units[index], self.loads[index] = nodes[index].price(
                self.kind, self.guess, now
            )
        self.dirty.clear()


class Pool:
    """Nodes that can all answer the same requests.

    Attributes:
        retries: the budget that `retry` takes from; each request that `started` counts for the first time earns.
        hedges: the same for second copies of slow requests.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.retries = RetryBudget(self.policy.retry_budget_ratio, self.policy.retry_floor_per_s)
        self.hedges = RetryBudget(self.policy.hedge_ratio, burst=10.0)
        self._nodes: list[Node] = []
        self._places: dict[str, int] = {}
        self._leaving: dict[str, Node] = {}
        self._boards: dict[str, _Board] = {}
        self._tick_at = -NEVER
        self._now: float | None = None
        self._serving = 0
        self._all_grown = False
        """Nodes serve, and none of them is held back by its slow start."""
        self._last = -1
        self._stretch, self._slack = 1.0 + self.policy.tie_band, self.policy.tie_floor_s

    def set_nodes(self, nodes: Mapping[str, NodeLimits]) -> None:
        """Make ``nodes`` the list: those that stay keep all that is known of them, new ones start.

        A node taken off the list gets nothing more; requests under way there still end in the ordinary way.
        """
        before = {node.name: node for node in self._nodes}
        joined_at = self._now if before else None
        listed = []
        for name, limits in nodes.items():
            node = before.pop(name, None) or self._leaving.pop(name, None)
            if node is None:
                node = Node(name, limits, self.policy, joined_at)
            node.listed = True
            node.set_limits(limits)
            listed.append(node)
        for name, node in before.items():
            node.listed = False
            if node.outstanding:
                self._leaving[name] = node
        self._nodes = listed
        self._places = {node.name: index for index, node in enumerate(listed)}
        self._tick_at = -NEVER

    def pick(self, now: float, kind: str = "", exclude: frozenset[str] = frozenset()) -> str | None:
        """Return the node where a request of ``kind`` should finish first; None when none may take it now.

        Args:
            now: monotonic seconds.
            kind: what is asked for, where kinds differ in cost.
            exclude: nodes that this request has tried in vain.
        """
        board = self._settled(kind, now)
        costs = board.costs
        if exclude:
            costs = list(costs)
            for name in exclude:
                if (index := self._places.get(name)) is not None:
                    costs[index] = NEVER
        index = self._best(costs)
        return self._spare(now, board, exclude) if index is None else self._nodes[index].name

    def send(self, now: float, kind: str = "") -> Ticket | None:
        """`pick` and `started` in one step, for a request that has not been tried yet."""
        board = self._settled(kind, now)
        index = self._best(board.costs)
        if index is None:
            name = self._spare(now, board, frozenset())
            return None if name is None else self.started(name, now, kind)
        self.retries.earned += 1
        self.hedges.earned += 1
        for other in self._boards.values():
            other.dirty.add(index)
        return self._nodes[index].start(board.kind, board.units[index], board.loads[index], now)

    def _settled(self, kind: str, now: float) -> _Board:
        if not now < self._tick_at:
            self._tick(now)
        board = self._boards.get(kind) or self._board(kind, now)
        if board.dirty:
            board.settle(self._nodes, now)
        return board

    def _best(self, costs: list[float]) -> int | None:
        """Return the place of the next in turn among the cheapest; None where none takes a request."""
        best = min(costs, default=NEVER)
        if best == NEVER:
            return None
        edge = max(best * self._stretch, best + self._slack)
        index, count = self._last + 1, len(costs)
        while index >= count or costs[index] > edge:
            index = index + 1 if index < count else 0
        self._last = index
        return index

    def retry(
        self,
        now: float,
        kind: str = "",
        exclude: frozenset[str] = frozenset(),
        held_by: Iterable[str] = (),
    ) -> str | None:
        """Return where a request may be sent once more; as `pick`, but paid from the budget of retries.

        Where that is spent, only a node that has answered of late is named, and only if no node that has the request
        now (``held_by``) is one. Such a node gets no more than its limit in any case, and ends a request with each
        answer, so load is not multiplied; and while one good node lives, no request has to wait for the budget.
        """
        if self.retries.available(now):
            name = self.pick(now, kind, exclude)
            if name is not None:
                self.retries.take(now)
            return name
        proven = {node.name for node in self._nodes if node.proven(now)}
        if not proven.isdisjoint(held_by):
            return None
        others = frozenset(node.name for node in self._nodes if node.name not in proven)
        return self.pick(now, kind, exclude | others)

    def started(self, node: str, now: float, kind: str = "", *, again: bool = False) -> Ticket:
        """Count a request sent to ``node``; hand the ticket back to `finished` exactly once.

        ``again``: it has been sent before, so it earns nothing for the budgets.

        Raises:
            KeyError: the node is not in the list.
        """
        index = self._places[node]
        if not again:
            self.retries.earned += 1
            self.hedges.earned += 1
        place = self._nodes[index]
        if not place.health.serving:
            place.tried_at = now
        board = self._boards.get(kind) or self._board(kind, now)
        _, unit, load = place.price(board.kind, board.guess, now)
        for other in self._boards.values():
            other.dirty.add(index)
        return place.start(board.kind, unit, load, now)

    def finished(self, ticket: Ticket, now: float, outcome: Outcome, why: str = "") -> None:
        """Take in how a request ended, for a wrong answer also in what way.

        Raises:
            ValueError: this ticket was handed back before.
        """
        if not ticket.open:
            raise ValueError(f"a request to {ticket.node} was finished twice")
        ticket.open = False
        place, kind = ticket.place, ticket.kind
        if place.finish(ticket, now, outcome, why):
            board = self._boards[kind]
            board.histogram.add(now - ticket.started, now)
            if place.speeds[kind].unit < 0.9 * board.guess or place.health.starting_at is not None:
                # The nodes not yet measured look worse than they may be, and would get no turn.
                self._tick_at = -NEVER
        elif not place.health.serving:
            self._tick_at = -NEVER
        if place.listed:
            index = self._places[place.name]
            for board in self._boards.values():
                board.dirty.add(index)
        elif not place.outstanding:
            self._leaving.pop(place.name, None)

    def silence_limit(self, node: str, kind: str, now: float) -> float:
        """Return the seconds after which a request sent to ``node`` is to be given up there and asked elsewhere.

        A node that has not been measured gets twice the patience of the pool as a whole, while others serve. The
        request's own deadline is not looked at: take the smaller of both.
        """
        policy = self.policy
        board = self._board(kind, now)
        index = self._places.get(node)
        p99 = None if index is None else self._nodes[index].p99(board.kind)
        if p99 is not None:
            return max(policy.silence_floor_s, policy.silence_factor * p99)
        first = max(policy.silence_floor_s, policy.first_silence_s)
        whole = board.histogram.quantile(0.99)
        if whole is None or self._serving < 2:
            return first
        return min(first, max(policy.silence_floor_s, 2 * policy.silence_factor * whole))

    def hedge_after(self, now: float, kind: str = "") -> float | None:
        """Return after how many seconds a request is worth asking a second node; None = do not.

        None too while the budget is spent, fewer than two nodes serve, or too little is known. Spend with
        ``hedges.take(now)`` when the second copy is sent.
        """
        board = self._board(kind, now)
        if board.histogram.total < _ENOUGH_FOR_HEDGING or not self.hedges.available(now):
            return None
        if not now < self._tick_at:
            self._tick(now)
        if self._serving < 2:
            return None
        return board.histogram.quantile(self.policy.hedge_quantile)

    def serves_beyond(self, names: frozenset[str]) -> bool:
        """Tell whether a node other than ``names`` is in service, free or not."""
        return any(node.health.serving and node.name not in names for node in self._nodes)

    def watch_after(self) -> float:
        """Return the seconds before which no request of any kind is silent, nor worth asking a second node."""
        slow = [
            board.histogram.quantile(self.policy.hedge_quantile)
            for board in self._boards.values()
            if board.histogram.total >= _ENOUGH_FOR_HEDGING
        ]
        return min([self.policy.silence_floor_s, *filter(None, slow)])

    def due_probes(self, now: float) -> list[str]:
        """Return the nodes to probe now; each comes up once per probe interval, so probe all that are returned."""
        for node in self._nodes:
            node.health.tick(now)
        return [node.name for node in self._nodes if node.health.probe_due(now)]

    def probed(self, node: str, now: float, ok: bool) -> None:
        """Take in the result of a probe; a node no longer listed is passed over."""
        index = self._places.get(node)
        if index is None:
            return
        place = self._nodes[index]
        if place.health.probed(ok, now):
            place.forget_speed()
        self._tick_at = -NEVER

    def drain(self, node: str) -> None:
        """Give ``node`` nothing new; what it has, it finishes. `release` ends that. KeyError: not listed."""
        self._nodes[self._places[node]].health.drain()
        self._tick_at = -NEVER

    def quarantine(self, node: str, reason: str) -> None:
        """Give ``node`` nothing until `release`, not even as a last resort. KeyError: not listed."""
        self._nodes[self._places[node]].health.lock(reason)
        self._tick_at = -NEVER

    def release(self, node: str) -> None:
        """End a drain or a quarantine; what was quarantined must pass a probe first. KeyError: not listed."""
        self._nodes[self._places[node]].health.release()
        self._tick_at = -NEVER

    def view(self, now: float) -> tuple[NodeView, ...]:
        """Return how every node stands, those leaving last."""
        self._tick(now)
        return tuple(node.view() for node in (*self._nodes, *self._leaving.values()))

    def _board(self, kind: str, now: float) -> _Board:
        board = self._boards.get(kind)
        if board is None:
            if len(self._boards) >= self.policy.max_kinds - 1 and kind != OTHER_KINDS:
                return self._board(OTHER_KINDS, now)
            board = self._boards[kind] = _Board(kind)
            board.renew(self._nodes, self.policy, now)
        return board

    def _tick(self, now: float) -> None:
        self._tick_at = now + _TICK_S
        self._now = now
        for node in self._nodes:
            node.tick(now)
        serving = [node.health for node in self._nodes if node.health.serving]
        self._serving = len(serving)
        self._all_grown = bool(serving) and all(health.starting_at is None for health in serving)
        for board in self._boards.values():
            board.renew(self._nodes, self.policy, now)

    def _spare(self, now: float, board: _Board, exclude: frozenset[str]) -> str | None:
        """Return where to send when no node is free in the ordinary way.

        First a serving node that only its slow start holds back; then, if this request has tried all that serve,
        one ejected node at a time: it may have come back, and the request has nothing to lose.
        """
        if self._all_grown and not exclude:
            return None
        serving = [node for node in self._nodes if node.health.serving and node.name not in exclude]
        chosen = [node for node in serving if node.has_room]
        if not serving:
            wait = self.policy.last_resort_interval_s
            chosen = [
                node
                for node in self._nodes
                if node.health.last_resort and node.has_room and now - node.tried_at >= wait
                and node.name not in exclude
            ]  # fmt: skip
        if not chosen:
            return None
        return min(chosen, key=lambda node: node.bare_cost(board.kind, board.guess, now)).name
