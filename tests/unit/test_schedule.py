"""The shortest expected finish among workers of unequal speed, and never more at once than threads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.recompute.server.schedule import Schedule, Slot

COSTS = {"card": 0.03, "cpu": 0.6}


def cost(worker: str, job: str) -> float | None:
    return None if job == "small" and worker == "card" else COSTS[worker]


def test_a_fast_worker_is_worth_a_short_wait_and_a_slow_one_a_long_queue() -> None:
    schedule = Schedule({"card": [0.0, 0.0], "cpu": [0.0]}, cost)
    slots = [schedule.put("any") for _ in range(60)]
    workers = [slot.worker for slot in slots if slot is not None]
    assert workers[:38] == ["card"] * 38
    assert "cpu" in workers[38:42]
    assert [slot.start for slot in slots[:2] if slot] == [0.0, 0.0]
    assert slots[2] is not None
    assert slots[2].start == pytest.approx(0.03)


def test_what_a_worker_may_not_do_goes_to_another_or_to_nobody() -> None:
    assert Schedule({"card": [0.0], "cpu": [9.0]}, cost).put("small") == Slot("cpu", 9.0, 9.6)
    assert Schedule({"card": [0.0]}, cost).put("small") is None
    assert Schedule[str, str]({}, cost).put("any") is None


def test_equals_share_the_work() -> None:
    schedule: Schedule[str, str] = Schedule({"a": [0.0, 0.0], "b": [0.0, 0.0]}, lambda *_: 1.0)
    assert [slot.worker for slot in (schedule.put("x"), schedule.put("x")) if slot] == ["a", "b"]


def test_it_is_idle_while_a_thread_is_free_now() -> None:
    schedule = Schedule({"cpu": [0.0, 0.0]}, cost)
    assert schedule.idle
    schedule.put("any")
    assert schedule.idle
    schedule.put("any")
    assert not schedule.idle


@given(
    st.dictionaries(st.integers(0, 4), st.lists(st.floats(0, 9), min_size=1, max_size=4), min_size=1),
    st.lists(st.dictionaries(st.integers(0, 4), st.floats(0.001, 9)), max_size=30),
)
def test_no_thread_has_two_jobs_at_once_and_no_job_could_end_sooner(
    workers: dict[int, list[float]], work: list[dict[int, float]]
) -> None:
    schedule: Schedule[int, dict[int, float]] = Schedule(workers, lambda worker, job: job.get(worker))
    taken: dict[int, list[Slot[int]]] = {worker: [] for worker in workers}
    for job in work:
        slot = schedule.put(job)
        if slot is None:
            assert not set(job) & set(workers)
            continue
        assert slot.finish == slot.start + job[slot.worker]
        taken[slot.worker].append(slot)
    for worker, slots in taken.items():
        busy = [(0.0, start) for start in workers[worker] if start > 0]
        busy += [(slot.start, slot.finish) for slot in slots]
        for begin, _ in busy:
            at_once = sum(start <= begin < end for start, end in busy)
            assert at_once <= len(workers[worker])
