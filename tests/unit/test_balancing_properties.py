"""Properties that hold whatever happens to a balancing pool, in whatever order."""

import sys

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from gpupool.balancing import NodeLimits, NodeState, Outcome, Policy, Pool, RetryBudget, Ticket
from gpupool.balancing.budget import WINDOW_S
from gpupool.balancing.histogram import LOWEST_S, RATIO, DecayingHistogram
from gpupool.balancing.learned_limit import LearnedLimit

NAMES = ("a", "b", "c", "d")
names = st.sampled_from(NAMES)
limits = st.builds(
    NodeLimits,
    weight=st.floats(0.1, 10),
    concurrency=st.none() | st.integers(1, 4),
)
BLOCKED = {NodeState.DRAINING, NodeState.QUARANTINED, NodeState.LEAVING}


class AnyOrder(RuleBasedStateMachine):
    """Requests start and end, nodes come and go, time passes; a model counts along."""

    tickets: Bundle[Ticket] = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()
        self.now = 0.0
        self.listed: dict[str, NodeLimits] = {}
        self.running: list[Ticket] = []
        self.learning = False

    @rule(nodes=st.dictionaries(names, limits, max_size=4))
    def list_nodes(self, nodes: dict[str, NodeLimits]) -> None:
        self.listed = nodes
        self.pool.set_nodes(nodes)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(target=tickets, kind=st.sampled_from(["", "C5", "C9"]), exclude=st.frozensets(names, max_size=3))
    def ask(self, kind: str, exclude: frozenset[str]) -> Ticket | MultipleResults[Ticket]:
        node = self.pool.pick(self.now, kind, exclude)
        if node is None:
            return multiple()
        before = {view.name: view for view in self.pool.view(self.now) if view.state is not NodeState.LEAVING}
        assert node in self.listed
        assert node not in exclude
        assert before[node].state not in BLOCKED
        limit = self.listed[node].concurrency
        assert limit is None or before[node].outstanding < limit
        ticket = self.pool.started(node, self.now, kind)
        self.running.append(ticket)
        return ticket

    @rule(ticket=consumes(tickets), outcome=st.sampled_from(Outcome))
    def end(self, ticket: Ticket, outcome: Outcome) -> None:
        self.running.remove(ticket)
        self.pool.finished(ticket, self.now, outcome)

    @rule(ok=st.booleans())
    def probe(self, ok: bool) -> None:
        for name in self.pool.due_probes(self.now):
            self.pool.probed(name, self.now, ok)

    @rule(node=names, what=st.sampled_from(["drain", "quarantine", "release"]))
    def operate(self, node: str, what: str) -> None:
        if node in self.listed:
            if what == "quarantine":
                self.pool.quarantine(node, "test")
            else:
                getattr(self.pool, what)(node)

    @invariant()
    def counts_agree(self) -> None:
        views = self.pool.view(self.now)
        assert [view.name for view in views[: len(self.listed)]] == list(self.listed)
        counted = {view.name: view.outstanding for view in views}
        assert sum(counted.values()) == len(self.running)
        for name in NAMES:
            assert counted.get(name, 0) == sum(ticket.node == name for ticket in self.running)

    @invariant()
    def answers_are_in_range(self) -> None:
        for name in NAMES:
            assert self.pool.silence_limit(name, "C5", self.now) >= self.pool.policy.silence_floor_s
        after = self.pool.hedge_after(self.now, "C5")
        assert after is None or after > 0

    @invariant()
    def a_free_node_in_service_is_found(self) -> None:
        free = [
            view
            for view in self.pool.view(self.now)
            if view.state in {NodeState.LIVE, NodeState.STARTING}
            and (view.limit is None or view.outstanding < view.limit)
        ]
        assert not free or self.pool.pick(self.now) is not None


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_order = AnyOrder.TestCase


@given(st.lists(st.floats(LOWEST_S, 800), min_size=1, max_size=300), st.floats(0.01, 0.99))
def test_quantiles_are_off_by_one_bucket_at_most(values: list[float], q: float) -> None:
    histogram = DecayingHistogram()
    for value in values:
        histogram.add(value, 0.0)
    found = histogram.quantile(q)
    assert found is not None
    assert sum(value <= found * 1.0001 for value in values) >= q * len(values) - 1e-6
    assert sum(value < found / RATIO / 1.0001 for value in values) < q * len(values) + 1e-6


@given(st.floats(0, 1), st.floats(0, 50), st.lists(st.tuples(st.booleans(), st.floats(0, 1)), max_size=200))
def test_a_budget_never_gives_more_than_was_earned(
    ratio: float, floor: float, steps: list[tuple[bool, float]]
) -> None:
    budget, now, requests, taken = RetryBudget(ratio, floor), 0.0, 0, 0
    for is_request, pause in steps:
        now += pause
        if is_request:
            requests += 1
            budget.earned += 1
        else:
            taken += budget.take(now)
        assert taken <= ratio * requests + floor * (now + WINDOW_S) + 1e-6


@given(
    st.integers(1, 20), st.integers(0, 50),
    st.lists(st.tuples(st.floats(1e-4, 10), st.integers(1, 80), st.booleans()), max_size=300),
)  # fmt: skip
def test_a_learned_limit_stays_between_its_bounds(
    start: int, more: int, seen: list[tuple[float, int, bool]]
) -> None:
    limit = LearnedLimit(start, start + more)
    for latency, load, silent in seen:
        if silent:
            limit.back_off()
        limit.observe(latency, load)
        assert start <= limit.current <= start + more


def deep_size(root: object) -> int:
    """Bytes of ``root`` and all it leads to."""
    seen: set[int] = set()
    todo, total = [root], 0
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        if isinstance(item, dict):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            todo += item
        slots = [name for base in type(item).__mro__ for name in getattr(base, "__slots__", ())]
        todo += [getattr(item, name) for name in slots if hasattr(item, name)]
        todo += list(getattr(item, "__dict__", {}).values())
    return total


def exercise(pool: Pool, begin: int, count: int) -> None:
    for turn in range(begin, begin + count):
        now, kind = turn * 0.05, f"kind {turn % 500}"
        if turn % 50 == 0:
            pool.set_nodes({f"node {turn // 50 + offset}": NodeLimits() for offset in range(4)})
        node = pool.pick(now, kind)
        assert node is not None
        pool.finished(pool.started(node, now, kind), now + 0.001 * (turn % 90), Outcome.OK)


def test_memory_does_not_grow_with_requests_kinds_or_passing_nodes() -> None:
    pool = Pool(Policy(max_kinds=8))
    exercise(pool, 0, 2000)
    before = deep_size(pool)
    exercise(pool, 2000, 4000)
    assert deep_size(pool) < 1.1 * before
    assert before < 100_000
