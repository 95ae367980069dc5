"""The dispatcher under simulated load, in virtual time: who computes what, who waits, who is refused, nobody lost."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_sim import STOPPING, Stage, answer_to, place, question
from gpupool.core.errors import BusyError, DeadlineError
from gpupool.recompute.server.tickets import Answer, WorkerLostError
from virtual_time import run


@dataclass(frozen=True)
class Call:
    """One request of a random load."""

    after: float
    """Seconds since the one before."""
    number: int
    level: int
    client: str
    seconds: float
    leaves_after: float | None


CALLS = st.lists(
    st.builds(
        Call,
        after=st.floats(0, 0.3),
        number=st.integers(0, 12),
        level=st.integers(1, 5),
        client=st.sampled_from("abc"),
        seconds=st.floats(0.05, 5),
        leaves_after=st.one_of(st.none(), st.none(), st.floats(0, 1)),
    ),
    max_size=40,
)
WORKERS = st.lists(
    st.tuples(st.sampled_from(["cpu", "gpu"]), st.floats(0.005, 0.8), st.integers(1, 3)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(WORKERS, CALLS, st.integers(0, 12), st.lists(st.floats(0, 4), max_size=3))
def test_whatever_happens_every_call_ends_once_in_time_and_rightly(
    workers: list[tuple[str, float, int]], calls: list[Call], room: int, deaths: list[float]
) -> None:
    """Also asserted, by the workers: never more at once than threads, nothing is started after its deadline."""

    async def one(stage: Stage, call: Call) -> tuple[Call, object, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        task = stage.ask(question(call.number, call.level), call.seconds, call.client)
        if call.leaves_after is not None:
            loop.call_later(call.leaves_after, task.cancel)
        (result,) = await asyncio.gather(task, return_exceptions=True)
        return call, result, loop.time() - began

    async def all_of_it() -> None:
        places = [place("gpu" if k == "gpu" else "cpu", s, n, str(i)) for i, (k, s, n) in enumerate(workers)]
        stage = Stage(*places, room=room)
        for number, when in enumerate(deaths):
            asyncio.get_running_loop().call_later(when, places[number % len(places)].give_up, "told to")
        tasks = []
        for call in calls:
            await asyncio.sleep(call.after)
            tasks.append(asyncio.create_task(one(stage, call)))
        for call, result, took in await asyncio.gather(*tasks):
            assert took <= call.seconds + 1e-6
            if isinstance(result, Answer):
                assert result.xs == answer_to(question(call.number, call.level))
            elif isinstance(result, asyncio.CancelledError):
                assert call.leaves_after is not None
            else:
                assert isinstance(result, DeadlineError | BusyError | WorkerLostError)
        await asyncio.sleep(2 * STOPPING)
        assert stage.forgotten()

    run(all_of_it())


def test_a_fast_card_takes_what_it_can_and_the_cpu_the_rest() -> None:
    async def go() -> float:
        card, cpu = place("gpu", 0.03, 2), place("cpu", 0.6, 2)
        stage = Stage(card, cpu)
        await stage.warm()
        await asyncio.gather(*(stage.ask(question(n)) for n in range(200)))
        assert len(cpu.started) >= 6
        return asyncio.get_running_loop().time()

    both = 2 / 0.03 + 2 / 0.6
    assert run(go()) < 1.1 * 200 / both


def test_a_lone_question_goes_to_the_card_even_if_it_must_wait_for_it() -> None:
    async def go() -> None:
        card, cpu = place("gpu", 0.03, 1), place("cpu", 0.6, 8)
        stage = Stage(card, cpu)
        await stage.warm()
        await asyncio.gather(*(stage.ask(question(n)) for n in range(5)))
        assert (len(card.started), len(cpu.started)) == (5, 0)

    run(go())


def test_a_card_that_hangs_holds_up_what_waits_for_it_only_as_long_as_the_cpu_would_take() -> None:
    async def go() -> float:
        card, cpu = place("gpu", 0.03, 1, hangs=True), place("cpu", 0.6, 1)
        stage = Stage(card, cpu)
        await stage.warm()
        stuck = stage.ask(question(1), 100)
        await asyncio.sleep(0.01)
        await stage.ask(question(2))
        ended = asyncio.get_running_loop().time()
        stuck.cancel()
        return ended

    assert run(go()) < 1.5


def test_small_questions_stay_with_the_cpu_and_go_to_a_card_only_where_there_is_no_other() -> None:
    async def go() -> None:
        card, cpu = place("gpu", 0.001, 2), place("cpu", 0.6, 1)
        stage = Stage(card, cpu)
        await stage.warm()
        await stage.ask(question(1, 1), kind="quality")
        assert (len(card.started), len(cpu.started)) == (0, 1)
        cpu.state = "resting"
        await stage.ask(question(2, 1), kind="quality")
        assert len(card.started) == 1

    run(go())


def test_every_worker_is_tried_and_the_faster_one_found() -> None:
    async def go() -> None:
        slow, fast = place("gpu", 0.5, 1, "slow"), place("gpu", 0.02, 1, "fast")
        stage = Stage(slow, fast)
        for number in range(30):
            await stage.ask(question(number))
        assert (len(slow.started), len(fast.started)) == (1, 29)

    run(go())


@pytest.mark.parametrize("crowd", [50, 1000])
def test_one_client_with_a_thousand_requests_does_not_starve_one_with_one(crowd: int) -> None:
    async def go() -> float:
        stage = Stage(place("cpu", 0.5, 2), room=64)
        await stage.warm()
        greedy = [stage.ask(question(n), client="greedy") for n in range(crowd)]
        await asyncio.sleep(3)
        began = asyncio.get_running_loop().time()
        await stage.ask(question(5000), client="modest")
        took = asyncio.get_running_loop().time() - began
        for task in greedy:
            task.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)
        return took

    # Its own half second, the rest of one that runs, and what slack and one job of the crowd take on two threads.
    assert run(go()) <= 0.5 + 0.5 + 1.0


def test_under_twice_the_load_all_that_is_started_is_answered_and_nobody_waits_in_vain() -> None:
    async def go() -> tuple[int, int, int]:
        cpu = place("cpu", 0.2, 4)
        stage = Stage(cpu, room=1000)
        await stage.warm()
        loop = asyncio.get_running_loop()
        waited_in_vain = 0

        async def one(number: int) -> bool:
            nonlocal waited_in_vain
            began = loop.time()
            try:
                await stage.ask(question(number), 2.0, f"client {number % 5}")
            except DeadlineError:
                waited_in_vain += loop.time() - began > 0.01
                return False
            return True

        tasks = []
        for number in range(1200):  # 40 a second where 20 can be done
            tasks.append(asyncio.create_task(one(number)))
            await asyncio.sleep(0.025)
        answered = sum(await asyncio.gather(*tasks))
        return answered, len(cpu.started), waited_in_vain

    answered, started, waited_in_vain = run(go())
    assert answered == started
    assert answered >= 0.95 * 600
    assert waited_in_vain <= 60


def test_a_shared_computation_is_charged_and_computed_once() -> None:
    async def go() -> None:
        cpu = place("cpu", 0.2, 2)
        stage = Stage(cpu)
        answers = await asyncio.gather(*(stage.ask(question(7), client=str(n)) for n in range(50)))
        assert {answer.xs for answer in answers} == {answer_to(question(7))}
        assert len(cpu.started) == 1
        assert stage.queue.joined == 49
        assert stage.forgotten()

    run(go())
