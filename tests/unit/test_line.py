"""Who is next: fair between clients, the earliest deadline within one, and nobody starves."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gpupool.recompute.server.line import LEAST_COST, SLACK, Line


@dataclass(eq=False)
class Job:
    client: str
    cost: float
    rank: tuple[float, int]


def jobs(client: str, count: int, cost: float = 1.0, deadline: float = 10.0, first: int = 0) -> list[Job]:
    return [Job(client, cost, (deadline, first + n)) for n in range(count)]


def filled(*groups: list[Job]) -> Line[Job]:
    line: Line[Job] = Line()
    for group in groups:
        for job in group:
            line.add(job)
    return line


def drained(line: Line[Job]) -> list[Job]:
    """Serve all, one after the other."""
    served = []
    while len(line):
        job = next(line.order())
        line.serve(job)
        served.append(job)
    return served


ANY_JOBS = st.lists(
    st.builds(
        Job,
        client=st.sampled_from("abcd"),
        cost=st.floats(0, 5),
        rank=st.tuples(st.floats(0, 100), st.integers(0, 10**6)),
    ),
    max_size=40,
)


@given(ANY_JOBS)
def test_everything_is_served_once_and_a_client_in_the_order_of_its_deadlines(waiting: list[Job]) -> None:
    line = filled(waiting)
    served = drained(line)
    assert sorted(map(id, served)) == sorted(map(id, waiting))
    for client in "abcd":
        ranks = [job.rank for job in served if job.client == client]
        assert ranks == sorted(ranks)
    assert len(line) == 0
    assert line._clients == {}


@given(ANY_JOBS)
def test_the_order_told_is_the_order_served(waiting: list[Job]) -> None:
    assert list(filled(waiting).order()) == drained(filled(waiting))


@given(ANY_JOBS, st.floats(0, 1000))
def test_nobody_waits_for_more_than_a_share_of_the_others(waiting: list[Job], deadline: float) -> None:
    """However late its deadline, a lone request stands behind each other client's slack and one job."""
    lone = Job("lone", 1.0, (deadline + 1000, 0))
    line = filled(waiting, [lone])
    ahead: dict[str, float] = {}
    largest: dict[str, float] = {}
    for job in drained(line):
        if job is lone:
            break
        cost = max(job.cost, LEAST_COST)
        ahead[job.client] = ahead.get(job.client, 0.0) + cost
        largest[job.client] = max(largest.get(job.client, 0.0), cost)
    for client, seconds in ahead.items():
        assert seconds <= SLACK + largest[client] + 1e-9


@given(ANY_JOBS, st.data())
def test_what_is_taken_out_is_gone(waiting: list[Job], data: st.DataObject) -> None:
    line = filled(waiting)
    out = data.draw(st.lists(st.sampled_from(waiting), unique_by=id)) if waiting else []
    for job in out:
        assert line.remove(job)
        assert not line.remove(job)
    assert len(line) == len(waiting) - len(out)
    assert not set(map(id, out)) & {id(job) for job in drained(line)}


def test_between_equals_the_earliest_deadline_is_first() -> None:
    late, early = jobs("a", 1, 0.1, 50.0), jobs("b", 1, 0.1, 5.0, 1)
    assert drained(filled(late, early)) == early + late


def test_a_share_that_was_never_used_is_not_saved_up() -> None:
    line = filled(jobs("a", 30))
    for _ in range(20):
        line.serve(next(line.order()))
    for job in jobs("b", 20, first=100):
        line.add(job)
    first = [job.client for job in drained(line)[:8]]
    assert 3 <= first.count("a") <= 5


def test_what_comes_back_is_first_and_costs_nothing_more() -> None:
    a, b = jobs("a", 2), jobs("b", 1)
    line = filled(a, b)
    line.serve(a[0])
    line.add_first(a[0])
    assert next(line.order()) is a[0]
    line.serve(a[0])
    assert next(line.order()) in {a[1], b[0]}
    assert len(line) == 2


def test_a_deadline_that_grew_is_heeded() -> None:
    first, second = jobs("a", 2)
    line = filled([first, second])
    first.rank = (99.0, 0)
    line.reorder(first)
    assert list(line.order()) == [second, first]


def test_a_full_line_takes_from_the_greediest_who_has_at_least_two_more() -> None:
    greedy = jobs("a", 3)
    assert filled(greedy).victim("b") is greedy[-1]
    assert filled(greedy).victim("a") is None
    assert filled(greedy, jobs("b", 2)).victim("b") is None
    assert filled().victim("b") is None
