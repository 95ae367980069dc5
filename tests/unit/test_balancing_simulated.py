"""A balanced pool under simulated traffic: shares, and what failing, hanging, slow and returning nodes cost."""

from functools import partial

import pytest

from balancing_sim import Server, Simulation
from gpupool.balancing import NodeLimits, NodeState

SOCKETS = NodeLimits(concurrency=64)


TWELVE = NodeLimits(concurrency=12)


def three(limits: NodeLimits = TWELVE) -> Simulation:
    return Simulation({name: Server(0.01, places=8) for name in "abc"}, limits)


def first_after(simulation: Simulation, node: str, when: float) -> float:
    return next(at for at, name in simulation.sent_at if name == node and at >= when)


@pytest.mark.parametrize(("places", "clients"), [(1, 16), (1, 64), (4, 64)])
def test_servers_that_queue_are_all_used_to_the_full(places: int, clients: int) -> None:
    simulation = Simulation(
        {"fast": Server(0.01, places), "slow": Server(0.1, places)}, SOCKETS, hedging=False
    )
    simulation.run(clients, until=12.0)
    # A few per cent are the price of least expected finish: the last requests rather wait at the fast one.
    assert simulation.rate(2, 12) == pytest.approx(places * 110, rel=0.06)
    assert simulation.rate(2, 12, "slow") == pytest.approx(places * 10, rel=0.5)


def test_a_fast_server_with_free_places_gets_nearly_everything() -> None:
    simulation = Simulation({"fast": Server(0.01, 64), "slow": Server(0.1, 64)}, SOCKETS, hedging=False)
    simulation.run(64, until=4.0)
    assert simulation.rate(1, 4) > 0.97 * 6400


@pytest.mark.parametrize("clients", [1, 16, 64])
def test_equal_nodes_get_equal_shares(clients: int) -> None:
    simulation = three()
    simulation.run(clients, until=4.0)
    rates = [simulation.rate(1, 4, name) for name in "abc"]
    assert max(rates) < 1.1 * min(rates)
    assert simulation.lost == 0


def test_weights_shift_load_between_nodes_with_free_places() -> None:
    limits = {"a": NodeLimits(weight=1.0), "b": NodeLimits(weight=3.0)}
    simulation = Simulation({"a": Server(0.01, 64), "b": Server(0.01, 64)}, limits, hedging=False)
    simulation.run(32, until=4.0)
    assert simulation.rate(1, 4, "b") > 2.5 * simulation.rate(1, 4, "a")


@pytest.mark.parametrize("clients", [1, 16, 64])
def test_a_killed_node_loses_nothing_and_is_back_within_a_probe_interval(clients: int) -> None:
    simulation = three()
    simulation.at(2.0, lambda: simulation.kill("b"))
    simulation.at(5.0, lambda: simulation.revive("b"))
    simulation.run(clients, until=10.0)
    assert simulation.lost == 0
    assert max(result.latency for result in simulation.finished(2.0, 5.0)) < 0.2
    assert first_after(simulation, "b", 5.0) <= 5.0 + 2.1
    assert simulation.rate(8, 9.9, "b") == pytest.approx(simulation.rate(8, 9.9, "a"), rel=0.2)


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("clients", [1, 16, 64])
def test_a_frozen_node_loses_nothing_even_if_its_probes_lie(clients: int, honest: bool) -> None:
    simulation = three()
    simulation.honest_probes = honest
    simulation.at(2.0, lambda: simulation.hang("b"))
    simulation.at(5.0, lambda: simulation.revive("b"))
    simulation.run(clients, until=10.0)
    assert simulation.lost == 0
    slow = [result for result in simulation.finished(2.0, 5.0) if result.latency > 0.1]
    assert max((result.latency for result in slow), default=0.0) < 1.2
    assert len(slow) <= 24, "no more than what was under way, and a few trials"
    # A trial that a lying probe earned just before the end must first be found silent.
    assert first_after(simulation, "b", 5.0) <= 5.0 + 2.1 + (0.0 if honest else 0.5)


def test_a_node_that_becomes_thirty_times_slower_is_left_alone_and_comes_back() -> None:
    simulation = three()
    simulation.at(2.0, lambda: setattr(simulation.servers["a"], "seconds", 0.3))
    simulation.at(5.0, lambda: setattr(simulation.servers["a"], "seconds", 0.01))
    simulation.run(16, until=18.0)
    assert simulation.lost == 0
    assert simulation.rate(3, 5) > 0.9 * simulation.rate(1, 2)
    assert simulation.rate(16, 17.9, "a") > 0.8 * simulation.rate(16, 17.9, "b")


def test_with_all_nodes_dead_requests_wait_for_their_deadline_and_the_first_to_return_serves_them() -> None:
    simulation = three()
    for name in "abc":
        simulation.at(1.0, partial(simulation.kill, name))
    simulation.at(8.0, lambda: simulation.revive("c"))
    simulation.run(4, until=9.0)
    lost = [result for result in simulation.results if result.node is None]
    assert lost
    assert all(result.latency == pytest.approx(4.5, abs=0.01) for result in lost)
    assert first_after(simulation, "c", 8.0) < 8.3
    assert all(result.node == "c" for result in simulation.results if result.ended > 8.5)


def test_while_nobody_serves_dead_nodes_are_tried_now_and_then_only() -> None:
    simulation = three()
    for name in "abc":
        simulation.kill(name)
    simulation.run(50, until=4.0)
    assert sum(simulation.sent.values()) < 3 * 4 * 9


def test_flapping_nodes_lose_nothing_while_one_stays() -> None:
    simulation = three()
    for second in range(1, 12):
        victim = "ab"[second % 2]
        simulation.at(second, partial(simulation.kill, victim))
        simulation.at(second + 0.7, partial(simulation.revive, victim))
    simulation.run(8, until=14.0)
    assert simulation.lost == 0
    assert {view.state for view in simulation.pool.view(30.0)} == {NodeState.LIVE}


def test_limits_hold_at_the_servers_at_every_moment() -> None:
    simulation = three(NodeLimits(concurrency=5))
    simulation.at(1.0, lambda: simulation.hang("a"))
    simulation.run(100, until=4.0)
    assert [server.most for server in simulation.servers.values()] == [5, 5, 5]


def test_hedging_cuts_the_tail_of_a_node_that_stalls_at_times() -> None:
    def worst(hedging: bool) -> float:
        simulation = Simulation({name: Server(0.01, 16) for name in "ab"}, hedging=hedging)
        simulation.at(2.0, lambda: setattr(simulation.servers["a"], "seconds", 0.3))
        simulation.at(2.1, lambda: setattr(simulation.servers["a"], "seconds", 0.01))
        simulation.run(4, until=4.0)
        return max(result.latency for result in simulation.results)

    assert worst(hedging=True) < 0.1
    assert worst(hedging=False) > 0.25


def test_a_learned_limit_finds_the_places_of_a_server_and_stays_near_them() -> None:
    limits = NodeLimits(concurrency=12, learn_up_to=100)
    simulation = Simulation({"big": Server(0.01, 40), "small": Server(0.01, 12)}, limits, hedging=False)
    simulation.run(100, until=5.0)
    big, small = simulation.pool.view(5.0)
    assert big.limit is not None
    assert small.limit is not None
    assert 32 <= big.limit <= 70
    assert 12 <= small.limit <= 22


def extra_allowed(simulation: Simulation, requests: int, seconds: float) -> float:
    """Return how often requests may be sent beyond the first time at nodes that have not proved themselves."""
    policy = simulation.pool.policy
    return policy.retry_budget_ratio * requests + policy.retry_floor_per_s * (seconds + 10.0)


@pytest.mark.parametrize("clients", [1, 32])
def test_while_one_good_node_lives_a_storm_of_retries_loses_nothing_and_stays_in_its_budget(
    clients: int,
) -> None:
    """Nine of ten pass their probes and fail every request: each return would be paid with retries without end."""
    servers = {f"bad{index}": Server(0.01, 64) for index in range(9)} | {"good": Server(0.01, 64)}
    simulation = Simulation(servers, SOCKETS, hedging=False)
    for name, server in servers.items():
        server.faulty = name != "good"
    simulation.run(clients, until=4.0)
    assert simulation.lost == 0
    wasted = sum(simulation.sent[name] for name in servers if name != "good")
    firsts = len(simulation.results)
    # A first attempt may go to a bad node as well; what is bounded is what comes on top.
    assert simulation.sent["good"] == firsts
    assert wasted <= firsts + extra_allowed(simulation, firsts, 4.0)


def test_where_nobody_answers_load_is_not_multiplied() -> None:
    servers = {f"bad{index}": Server(0.01, 64) for index in range(8)}
    simulation = Simulation(servers, SOCKETS, hedging=False)
    for server in servers.values():
        server.faulty = True
    simulation.run(48, until=8.0)
    requests = len(simulation.results)
    assert simulation.lost == requests
    sent = sum(simulation.sent.values())
    assert sent <= requests + extra_allowed(simulation, requests, 17.0)


def test_frozen_nodes_give_their_requests_back_although_the_budget_is_spent() -> None:
    servers = {name: Server(0.01, 64) for name in "abcd"}
    simulation = Simulation(servers, SOCKETS, hedging=False)

    def spend() -> None:
        while simulation.pool.retries.take(simulation.now):
            pass

    simulation.at(1.0, spend)
    for name in "abc":
        simulation.at(1.0, partial(simulation.hang, name))
    simulation.run(80, until=3.0)
    assert simulation.lost == 0
