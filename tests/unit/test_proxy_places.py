"""Who makes room when all places for clients are taken."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gpupool.recompute.proxy.places import who_leaves


@dataclass(eq=False)
class Someone:
    peer: str
    since: float
    busy: bool = False


def names(leaving: list[Someone]) -> list[tuple[str, float]]:
    return [(client.peer, client.since) for client in leaving]


def chosen(clients: list[Someone], most: int) -> list[Someone]:
    return who_leaves(clients, most)  # type: ignore[arg-type, return-value]


def test_the_address_with_most_loses_its_oldest_first() -> None:
    many, few = [Someone("many", float(n)) for n in range(5)], [Someone("few", 0.5), Someone("few", 9.0)]
    assert names(chosen([*few, *many], 3)) == [("many", 0.0), ("many", 1.0), ("many", 2.0)]


def test_among_equals_who_rests_for_longest_leaves() -> None:
    assert names(chosen([Someone("a", 3.0), Someone("b", 1.0), Someone("c", 2.0)], 2)) == [
        ("b", 1.0),
        ("c", 2.0),
    ]


@given(
    st.lists(st.builds(Someone, st.sampled_from("abc"), st.floats(0, 9), st.booleans()), max_size=40),
    st.integers(1, 9),
)
def test_who_waits_for_an_answer_stays_and_somebody_leaves(clients: list[Someone], most: int) -> None:
    leaving = chosen(clients, most)
    assert not any(client.busy for client in leaving)
    assert (
        len(leaving) == len({id(client) for client in leaving}) == min(most, sum(not c.busy for c in clients))
    )
