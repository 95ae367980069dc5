"""The choice of an endpoint, and what is said when there is none."""

from contextlib import ExitStack
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpupool.contracts.feed import EndpointsView, FeedEndpoint, FeedWorkload
from gpupool.fleet.endpoints import EndpointHealth
from gpupool.fleet.workloads import Protocol
from gpupool.gateway.routing import Router, Upstream


def endpoint(name: str, **changes: Any) -> FeedEndpoint:
    values: dict[str, Any] = {
        "id": name,
        "placement": f"pl-{name}",
        "node": "n",
        "workload": "w",
        "models": ["tiny"],
        "protocol": Protocol.OPENAI,
        "address": "127.0.0.1:1",
        "state": "active",
        "health": EndpointHealth.OK,
    }
    return FeedEndpoint(**values | changes)


def workload(name: str = "w", **changes: Any) -> FeedWorkload:
    values: dict[str, Any] = {"id": name, "name": name, "models": ["tiny"], "wanted": 1, "state": "active"}
    return FeedWorkload(**values | {"created_at": 1.0} | changes)


def router(*endpoints: FeedEndpoint, workloads: tuple[FeedWorkload, ...] = (workload(),)) -> Router:
    made = Router()
    made.update(EndpointsView(revision=1, workloads=list(workloads), endpoints=list(endpoints)))
    return made


def chosen(from_router: Router, **kwargs: Any) -> Upstream:
    upstream = from_router.choose("tiny", **kwargs)
    assert upstream is not None
    return upstream


def test_ties_take_turns() -> None:
    routes = router(*(endpoint(name) for name in "abc"))
    names = [chosen(routes).endpoint.id for _ in range(6)]
    assert sorted(names[:3]) == ["a", "b", "c"]
    assert names[:3] == names[3:]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=8))
def test_the_choice_is_least_burdened_and_unknown_health_comes_last(burdens: list[tuple[int, bool]]) -> None:
    routes = router(
        *(
            endpoint(str(index), health=EndpointHealth.OK if healthy else EndpointHealth.UNKNOWN)
            for index, (_, healthy) in enumerate(burdens)
        )
    )
    with ExitStack() as stack:
        found: list[Upstream] = []
        while (upstream := routes.choose("tiny", found)) is not None:
            found.append(upstream)
            for _ in range(burdens[int(upstream.endpoint.id)][0]):
                stack.enter_context(upstream.busy())
        assert len(found) == len(burdens)
        best = chosen(routes)
        assert best.burden() == min((not healthy, count) for count, healthy in burdens)
        assert routes.outstanding() == {"tiny": sum(count for count, _ in burdens)}
    assert routes.outstanding() == {"tiny": 0}


def test_a_new_view_keeps_the_counts_and_takes_the_new_address() -> None:
    routes = router(endpoint("a"))
    with chosen(routes).busy():
        routes.update(
            EndpointsView(
                revision=2, workloads=[workload()], endpoints=[endpoint("a", address="127.0.0.1:2")]
            )
        )
        assert chosen(routes).outstanding == 1
        assert chosen(routes).base_url == "http://127.0.0.1:2"


def test_a_draining_endpoint_gets_nothing_new() -> None:
    routes = router(endpoint("a", state="draining"))
    assert routes.choose("tiny") is None
    assert routes.absence("tiny").code == "model_not_ready"


def test_before_the_first_view_nothing_is_said_to_be_missing() -> None:
    fault = Router().absence("tiny")
    assert (fault.status, fault.code, fault.headers) == (503, "not_ready", {"Retry-After": "1"})


def test_an_unknown_model_is_answered_with_what_there_is() -> None:
    fault = router(workloads=(workload("w", models=["a", "b"]),)).absence("c")
    assert (fault.status, fault.code, fault.param) == (404, "model_not_found", "model")
    assert "'c'" in fault.message
    assert "a, b" in fault.message


def test_an_empty_pool_says_how_to_get_a_model_and_a_long_list_is_cut() -> None:
    assert "gpupool chute deploy" in router(workloads=()).absence("c").message
    many = router(workloads=(workload("w", models=[f"m{n:02}" for n in range(30)]),)).absence("c").message
    assert many.endswith("and 10 more.")


def test_a_cold_model_says_what_happens_and_when_to_return() -> None:
    starting = router(workloads=(workload(state="starting", why="loading weights."),)).absence("tiny")
    assert (starting.status, starting.headers["Retry-After"]) == (503, "5")
    assert "w is starting (loading weights)." in starting.message
    waiting = router(workloads=(workload(state="waiting", why="no GPU is free"),)).absence("tiny")
    assert "waits for a place (no GPU is free)." in waiting.message
    assert int(waiting.headers["Retry-After"]) > 5


def test_a_workload_switched_off_is_not_listed_and_says_so() -> None:
    routes = router(workloads=(workload(state="off"),))
    assert routes.models() == {}
    assert "0 replicas" in routes.absence("tiny").message


def test_of_two_workloads_the_nearer_to_serving_speaks() -> None:
    routes = router(
        workloads=(workload("old", state="waiting"), workload("new", state="starting", created_at=9.9))
    )
    assert "new is starting" in routes.absence("tiny").message
    assert routes.models() == {"tiny": 9}
