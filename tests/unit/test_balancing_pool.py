"""The rules of the balancing pool, one by one, with time passed in by hand."""

from typing import Any

import pytest

from gpupool.balancing import NodeLimits, NodeState, Outcome, Policy, Pool, Ticket


def pool_of(*names: str, policy: Policy | None = None, limits: NodeLimits | None = None) -> Pool:
    pool = Pool(policy)
    pool.set_nodes({name: limits or NodeLimits() for name in names})
    return pool


def serve(
    pool: Pool, node: str, now: float, seconds: float, outcome: Outcome = Outcome.OK, kind: str = ""
) -> None:
    pool.finished(pool.started(node, now, kind), now + seconds, outcome)


def measured(**seconds: float) -> Pool:
    pool = pool_of(*seconds)
    for node, each in seconds.items():
        for turn in range(30):
            serve(pool, node, turn * 0.1, each)
    return pool


def fail(pool: Pool, node: str, now: float, times: int = 3) -> None:
    for _ in range(times):
        serve(pool, node, now, 0.0, Outcome.FAILED)


def state(pool: Pool, node: str, now: float) -> NodeState:
    return next(view.state for view in pool.view(now) if view.name == node)


def test_an_empty_pool_has_nothing_to_offer() -> None:
    pool = Pool()
    assert pool.pick(0.0) is None
    assert pool.due_probes(0.0) == []
    assert pool.view(0.0) == ()


def test_ties_take_turns() -> None:
    pool = pool_of("a", "b", "c")
    picked = []
    for turn in range(6):
        node = pool.pick(turn * 0.01)
        assert node is not None
        picked.append(node)
        serve(pool, node, turn * 0.01, 0.005)
    assert picked == ["a", "b", "c"] * 2


def test_nodes_a_few_milliseconds_apart_take_turns() -> None:
    pool = measured(a=0.020, b=0.023)
    picked = []
    for turn in range(6):
        node = pool.pick(4.0 + turn * 0.1)
        assert node is not None
        picked.append(node)
        serve(pool, node, 4.0 + turn * 0.1, 0.020 if node == "a" else 0.023)
    assert sorted(picked) == ["a"] * 3 + ["b"] * 3


def test_the_faster_node_is_preferred_until_it_has_so_much_to_do_that_the_slower_one_is_sooner() -> None:
    pool = measured(fast=0.01, slow=0.045)
    picked: list[str] = []
    while "slow" not in picked:
        node = pool.pick(4.0)
        assert node is not None
        picked.append(node)
        pool.started(node, 4.0)
    assert 4 <= len(picked) <= 6


def test_speed_is_known_per_kind() -> None:
    pool = pool_of("a", "b")
    for turn in range(10):
        now = turn * 0.1
        serve(pool, "a", now, 0.01, kind="C3")
        serve(pool, "a", now, 0.5, kind="C9")
        serve(pool, "b", now, 0.05, kind="C3")
        serve(pool, "b", now, 0.05, kind="C9")
    assert pool.pick(2.0, "C3") == "a"
    assert pool.pick(2.0, "C9") == "b"
    pool.started("a", 2.0, "C9")
    assert pool.pick(2.0, "C3") == "b", "half a second of other work is ahead at the faster node"


def test_excluded_nodes_are_not_picked_and_unknown_names_do_not_matter() -> None:
    pool = pool_of("a", "b")
    assert pool.pick(0.0, exclude=frozenset({"a", "gone"})) == "b"
    assert pool.pick(0.0, exclude=frozenset({"a", "b"})) is None


def test_a_full_node_is_not_picked() -> None:
    pool = pool_of("a", limits=NodeLimits(concurrency=2))
    tickets = [pool.started("a", 0.0), pool.started("a", 0.0)]
    assert pool.pick(0.0) is None
    pool.finished(tickets[0], 0.1, Outcome.OK)
    assert pool.pick(0.1) == "a"


def test_failures_in_a_row_eject_and_one_good_probe_brings_back() -> None:
    pool = measured(a=0.01, b=0.01)
    fail(pool, "a", 10.0)
    assert state(pool, "a", 10.0) is NodeState.EJECTED
    assert {pool.pick(10.0 + turn / 10) for turn in range(10)} == {"b"}
    assert pool.due_probes(11.9) == []
    assert pool.due_probes(12.0) == ["a"]
    assert pool.due_probes(12.0) == [], "it was handed out"
    pool.probed("a", 12.0, ok=True)
    assert state(pool, "a", 12.0) is NodeState.STARTING
    assert "a" in {pool.pick(12.0), pool.pick(12.0)}
    serve(pool, "a", 12.0, 0.01)
    assert state(pool, "a", 17.1) is NodeState.LIVE


def test_a_single_failure_that_nothing_contradicts_is_settled_by_a_probe() -> None:
    pool = measured(a=0.01, b=0.01)
    fail(pool, "a", 4.0, times=1)
    assert state(pool, "a", 4.0) is NodeState.LIVE
    assert state(pool, "a", 5.1) is NodeState.EJECTED
    assert pool.due_probes(5.1) == ["a"]


def test_a_node_that_accepts_probes_but_never_answers_needs_ever_more_of_them() -> None:
    pool = pool_of("bad", "good", policy=Policy(patient_returns=1, max_return_probes=4))
    now, needed = 0.0, []
    fail(pool, "bad", now)
    for _ in range(5):
        probes = 0
        while state(pool, "bad", now) is NodeState.EJECTED:
            now += 2.0
            if "bad" in pool.due_probes(now):
                probes += 1
                pool.probed("bad", now, ok=True)
        needed.append(probes)
        fail(pool, "bad", now + 0.1, times=1)
    assert needed == [1, 1, 2, 4, 4]


def test_slow_start_lets_the_share_of_a_returned_node_grow() -> None:
    pool = measured(a=0.01, b=0.01)
    fail(pool, "a", 10.0)
    pool.probed("a", 12.0, ok=True)
    serve(pool, "a", 12.0, 0.01)

    def taken(now: float) -> int:
        tickets: list[Ticket] = []
        while len(tickets) < 100 and (node := pool.pick(now)) is not None:
            tickets.append(pool.started(node, now))
        for ticket in tickets:
            pool.finished(ticket, now + 0.01, Outcome.CANCELLED)
        return sum(ticket.node == "a" for ticket in tickets)

    early, later, full = taken(12.2), taken(13.5), taken(18.0)
    assert 1 <= early < later < full
    assert full == pytest.approx(50, abs=3)


def test_what_was_sent_before_an_ejection_does_not_count_against_the_returned_node() -> None:
    pool = measured(a=0.01, b=0.01)
    old = [pool.started("a", 10.0) for _ in range(8)]
    fail(pool, "a", 10.1)
    pool.probed("a", 12.0, ok=True)
    for ticket in old:
        pool.finished(ticket, 12.5, Outcome.TIMED_OUT)
    assert state(pool, "a", 12.5) is NodeState.STARTING


def test_a_node_with_work_that_has_gone_quiet_gets_no_more() -> None:
    pool = measured(a=0.01, b=0.02)
    pool.started("a", 4.0)
    assert {pool.pick(4.5 + turn / 10) for turn in range(5)} == {"b"}


def test_drained_nodes_finish_what_they_have_and_get_nothing_new() -> None:
    pool = pool_of("a", "b")
    ticket = pool.started("a", 0.0)
    pool.drain("a")
    assert {pool.pick(turn / 10) for turn in range(5)} == {"b"}
    pool.finished(ticket, 1.0, Outcome.OK)
    assert state(pool, "a", 1.0) is NodeState.DRAINING
    pool.release("a")
    assert "a" in {pool.pick(1.0), pool.pick(1.0)}


def test_wrong_answers_quarantine_and_a_released_node_must_pass_a_probe() -> None:
    pool = pool_of("a", "b")
    for turn in range(3):
        assert state(pool, "a", turn) is NodeState.LIVE
        serve(pool, "a", turn, 0.01, Outcome.WRONG)
    view = next(view for view in pool.view(3.0) if view.name == "a")
    assert (view.state, view.reason) == (NodeState.QUARANTINED, "wrong answers")
    assert pool.pick(3.0, exclude=frozenset({"b"})) is None, "not even as a last resort"
    assert "a" not in pool.due_probes(100.0)
    assert "a" in pool.due_probes(700.0), "time ends it"
    pool.probed("a", 700.0, ok=True)
    assert state(pool, "a", 700.0) is NodeState.STARTING


def test_an_operators_quarantine_lasts_until_it_is_lifted() -> None:
    pool = pool_of("a")
    pool.quarantine("a", "looks odd")
    assert pool.pick(1e6) is None
    pool.release("a")
    assert state(pool, "a", 1e6) is NodeState.EJECTED
    assert pool.due_probes(1e6) == ["a"]


def test_a_few_wrong_answers_over_a_long_time_are_forgiven() -> None:
    pool = pool_of("a", "b")
    for turn in range(10):
        serve(pool, "a", turn * 1000.0, 0.01, Outcome.WRONG)
    assert state(pool, "a", 1e4) is NodeState.LIVE


def test_nodes_that_stay_keep_what_is_known_and_removed_ones_end_their_work() -> None:
    pool = measured(fast=0.01, slow=0.1)
    ticket = pool.started("fast", 4.0)
    pool.set_nodes({"slow": NodeLimits(), "new": NodeLimits()})
    assert [(view.name, view.state) for view in pool.view(4.0)][-1] == ("fast", NodeState.LEAVING)
    pool.set_nodes({"fast": NodeLimits(), "slow": NodeLimits(weight=2.0)})
    assert [view.outstanding for view in pool.view(4.1)] == [1, 0]
    pool.set_nodes({"slow": NodeLimits()})
    pool.finished(ticket, 4.2, Outcome.OK)
    assert [view.name for view in pool.view(4.2)] == ["slow"]
    assert pool.view(4.2)[0].latency == pytest.approx(0.1)


def test_a_request_cannot_end_twice_or_at_a_stranger() -> None:
    pool = pool_of("a")
    ticket = pool.started("a", 0.0)
    pool.finished(ticket, 1.0, Outcome.OK)
    with pytest.raises(ValueError, match="twice"):
        pool.finished(ticket, 1.0, Outcome.OK)
    with pytest.raises(KeyError):
        pool.started("nobody", 0.0)


def test_silence_is_four_times_the_99th_percentile_and_never_less_than_the_floor() -> None:
    pool = measured(quick=0.01, slow=0.3)
    assert pool.silence_limit("quick", "", 4.0) == 0.5
    assert pool.silence_limit("slow", "", 4.0) == pytest.approx(1.2, rel=0.16)


def test_patience_grows_with_load() -> None:
    pool = measured(a=0.2)
    idle = pool.silence_limit("a", "", 4.0)
    for _ in range(5):
        pool.started("a", 4.0)
    assert pool.silence_limit("a", "", 4.0) == pytest.approx(5 * idle, rel=0.01)


def test_an_unmeasured_node_gets_the_patience_of_the_pool_while_others_serve() -> None:
    assert pool_of("a", "b").silence_limit("a", "", 0.0) == Policy().first_silence_s
    pool = measured(known=0.1)
    pool.set_nodes({"known": NodeLimits(), "new": NodeLimits()})
    pool.pick(4.0)
    assert pool.silence_limit("new", "", 4.0) == pytest.approx(0.8, rel=0.16)


def test_hedging_is_advised_at_the_quantile_while_the_budget_lasts() -> None:
    pool = measured(a=0.1, b=0.1)
    after = pool.hedge_after(4.0)
    assert after == pytest.approx(0.1, rel=0.16)
    while pool.hedges.take(4.0):
        pass
    assert pool.hedge_after(4.0) is None


def test_hedging_is_not_advised_without_knowledge_or_without_a_second_node() -> None:
    assert pool_of("a", "b").hedge_after(0.0) is None
    assert measured(a=0.1).hedge_after(4.0) is None


def test_a_node_that_slows_down_is_shown_as_slow() -> None:
    pool = measured(a=0.01, b=0.01)
    assert not pool.view(4.0)[0].slow
    for turn in range(30):
        serve(pool, "a", 4.0 + turn * 0.1, 0.08)
    assert [view.slow for view in pool.view(8.0)] == [True, False]


def test_idle_nodes_are_probed_so_that_an_outage_is_seen_without_traffic() -> None:
    pool = pool_of("a")
    assert pool.due_probes(100.0) == []
    assert pool.due_probes(110.0) == ["a"]
    pool.probed("a", 110.0, ok=True)
    assert pool.due_probes(115.0) == []
    for now in (120.0, 122.0, 124.0):
        for name in pool.due_probes(now):
            pool.probed(name, now, ok=False)
    assert state(pool, "a", 124.0) is NodeState.EJECTED


def test_a_slow_node_gets_another_try_when_its_speed_is_old_news() -> None:
    pool = measured(fast=0.01, slow=0.1)
    assert {pool.pick(4.0 + turn / 100) for turn in range(20)} == {"fast"}
    assert "slow" in {pool.pick(40.0), pool.pick(40.0)}


@pytest.mark.parametrize(
    "wrong", [{"weight": 0.0}, {"weight": float("inf")}, {"concurrency": 0}, {"learn_up_to": 5},
              {"concurrency": 6, "learn_up_to": 5}],
)  # fmt: skip
def test_limits_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"weight|concurrency"):
        NodeLimits(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"eject_after_failures": 0}, {"hedge_quantile": 1.0}, {"probe_interval_s": 0.0}, {"tie_band": -1.0},
              {"patient_returns": -1}],
)  # fmt: skip
def test_policies_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Policy(**wrong)


def test_sending_is_picking_and_starting_in_one_step() -> None:
    one, other = (pool_of("a", "b", limits=NodeLimits(concurrency=3)) for _ in range(2))
    for turn in range(8):
        now = turn * 0.01
        picked, ticket = one.pick(now, "C5"), other.send(now, "C5")
        if picked is None:
            assert ticket is None
            continue
        assert ticket is not None
        again = one.started(picked, now, "C5")
        assert (again.node, again.load, again.unit) == (ticket.node, ticket.load, ticket.unit)
    assert other.view(1.0) == one.view(1.0)
    assert [view.outstanding for view in one.view(1.0)] == [3, 3]


def test_sending_earns_for_the_budgets_like_starting() -> None:
    pool = pool_of("a", policy=Policy(retry_floor_per_s=0.0, retry_budget_ratio=0.5))
    assert not pool.retries.available(0.0)
    for _ in range(2):
        ticket = pool.send(0.0)
        assert ticket is not None
        pool.finished(ticket, 0.1, Outcome.OK)
    assert pool.retries.available(0.2)


def test_of_thousands_of_answers_a_second_some_are_measured_and_all_are_counted() -> None:
    pool = pool_of("a", policy=Policy(learn_every_s=0.005))
    for turn in range(1000):
        serve(pool, "a", 1 + turn * 0.001, 0.0005 if turn % 5 else 0.0007)
    (view,) = pool.view(2.0)
    assert view.counts[Outcome.OK] == 1000
    assert view.latency is not None
    assert 0.0005 <= view.latency <= 0.0007


def test_nobody_needs_to_watch_a_request_before_the_quickest_kind_is_slow() -> None:
    assert pool_of("a", "b").watch_after() == Policy().silence_floor_s
    pool = measured(a=0.02, b=0.02)
    assert 0.02 <= pool.watch_after() <= 0.025
    for turn in range(30):
        serve(pool, "a", 4 + turn * 0.1, 3.0, kind="slow")
    assert 0.02 <= pool.watch_after() <= 0.025
