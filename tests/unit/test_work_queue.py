"""The queue of a server: room, deadlines by a fake clock, equal questions, lost workers, work nobody waits for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gpupool.core.clock import Clock, FakeClock
from gpupool.core.errors import DeadlineError
from gpupool.pos.errors import NoProofError
from gpupool.recompute.demo import demo_request, known_proof
from gpupool.recompute.server.questions import Question, read_proof_question
from gpupool.recompute.server.rates import Work
from gpupool.recompute.server.tickets import Answer, WorkerLostError
from gpupool.recompute.server.work import OverloadedError, WorkQueue
from polling import eventually
from recompute_stage import ScriptedEngine, ThreadCrew

LONG = 1e6
QUESTION = read_proof_question(demo_request().model_dump_json().encode())


def changed(number: int) -> Question:
    return replace(QUESTION, plot_id=number.to_bytes(32))


OTHER, THIRD = changed(2**200), changed(2**201)


class Desk:
    """A queue, its crew and their engine."""

    def __init__(self, threads: int, room: int, clock: Clock | None) -> None:
        self.engine = ScriptedEngine()
        self.crew = ThreadCrew(self.engine, threads, clock)
        self.queue = WorkQueue(self.crew, room, clock)

    def ask(
        self, deadline: float = LONG, question: Question = QUESTION, client: str = "", *, fresh: bool = True
    ) -> asyncio.Task[Answer]:
        return asyncio.create_task(self.queue.run("proof", question, deadline, client, fresh=fresh))

    def learn(self, seconds: float, question: Question = QUESTION) -> None:
        """Have the worker known for taking so long."""
        for _ in range(40):
            self.queue.rates.learn(Work.of("proof", question), seconds, self.crew.plan.factory)


@asynccontextmanager
async def desk(
    threads: int, room: int, clock: Clock | None = None, *, shut: bool = True
) -> AsyncIterator[Desk]:
    """A desk whose engine answers nothing until its gate is open, unless not ``shut``."""
    made = Desk(threads, room, clock)
    if shut:
        made.engine.gate.clear()
    yield made
    made.crew.close()


async def test_a_question_is_answered_and_an_error_of_the_engine_comes_back() -> None:
    async with desk(1, 0, shut=False) as d:
        assert (await d.ask()).xs == known_proof().xs
        d.engine.fault = NoProofError()
        with pytest.raises(NoProofError):
            await d.ask()
        assert d.queue.running == d.queue.waiting == 0


async def test_an_engine_that_fails_unexpectedly_leaves_nobody_waiting() -> None:
    async with desk(1, 0, shut=False) as d:
        d.engine.fault = ZeroDivisionError()
        with pytest.raises(DeadlineError, match="ZeroDivisionError"):  # any error; the stage knows few codes
            await d.ask()


async def test_as_many_run_as_there_are_threads_and_as_many_wait_as_there_is_room() -> None:
    async with desk(2, 3) as d:
        calls = [d.ask() for _ in range(5)]
        await eventually(lambda: d.queue.running == 2 and d.queue.waiting == 3)
        with pytest.raises(OverloadedError) as fault:
            await d.ask()
        assert fault.value.retry_after is not None
        assert fault.value.retry_after >= 1
        d.engine.gate.set()
        assert [answer.xs for answer in await asyncio.gather(*calls)] == [known_proof().xs] * 5
        assert await d.queue.drain(30)


async def test_retry_after_grows_with_the_time_that_work_takes() -> None:
    async with desk(1, 0) as d:
        call = d.ask()
        await eventually(lambda: d.queue.running)
        for seconds, expected in ((5.0, {5}), (1e6, {60})):
            d.queue._mean_seconds = seconds
            with pytest.raises(OverloadedError) as fault:
                await d.ask()
            assert fault.value.retry_after in expected
        d.engine.gate.set()
        await call


async def test_running_work_sees_its_deadline_pass() -> None:
    clock = FakeClock()
    async with desk(1, 0, clock) as d:
        call = d.ask(100.0)
        await eventually(lambda: d.engine.asked)
        clock.advance(100.0)
        with pytest.raises(DeadlineError):
            await call


async def test_a_deadline_that_has_passed_starts_nothing() -> None:
    async with desk(1, 0, FakeClock(), shut=False) as d:
        with pytest.raises(DeadlineError):
            await d.ask(0.0)
        await d.ask()
        assert len(d.engine.asked) == 1


async def test_draining_gives_up_in_time() -> None:
    async with desk(1, 0) as d:
        call = d.ask()
        await eventually(lambda: d.queue.running)
        assert not await d.queue.drain(0.01)
        d.engine.gate.set()
        assert (await call).xs == known_proof().xs
        assert await d.queue.drain(30)


async def test_what_cannot_be_done_behind_what_is_ahead_is_refused_at_once() -> None:
    clock = FakeClock()
    async with desk(2, 5, clock) as d:
        d.learn(4.0)
        calls = [d.ask() for _ in range(2)]
        await eventually(lambda: d.queue.running == 2)
        with pytest.raises(DeadlineError, match="takes this server 4000 ms, after 4000 ms of waiting"):
            await d.ask(7.5)
        calls.append(d.ask(8.5))
        await eventually(lambda: d.queue.waiting == 1)
        calls.append(d.ask(8.6))
        await eventually(lambda: d.queue.waiting == 2)
        with pytest.raises(DeadlineError, match="after 8000 ms of waiting"):
            await d.ask(9.0)
        clock.advance(3.0)
        with pytest.raises(DeadlineError, match="after 5000 ms of waiting"):
            await d.ask(11.5)
        d.engine.gate.set()
        await asyncio.gather(*calls)


async def test_what_is_only_guessed_refuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    # Guessed to take hours; the engine answers at once.
    monkeypatch.setattr("gpupool.recompute.server.rates._SECONDS_A_VALUE", 1e3)
    async with desk(1, 5, FakeClock(), shut=False) as d:
        await d.ask(60.0)
        assert len(d.engine.asked) == 1


async def test_a_question_whose_time_ran_out_while_it_waited_is_never_started() -> None:
    clock = FakeClock()
    async with desk(1, 5, clock) as d:
        first, second = d.ask(), d.ask(10.0, OTHER)
        await eventually(lambda: d.queue.waiting == 1)
        clock.advance(10.0)
        d.engine.gate.set()
        await first
        with pytest.raises(DeadlineError):
            await second
        assert d.engine.asked == [QUESTION]


async def test_the_earliest_deadline_of_a_client_is_first() -> None:
    async with desk(1, 5) as d:
        calls = [d.ask(), d.ask(LONG, OTHER)]
        await eventually(lambda: d.queue.waiting == 1)
        calls.append(d.ask(LONG / 2, THIRD))
        await eventually(lambda: d.queue.waiting == 2)
        d.engine.gate.set()
        await asyncio.gather(*calls)
        assert d.engine.asked == [QUESTION, THIRD, OTHER]


async def test_one_client_with_many_requests_does_not_starve_one_with_a_single_one() -> None:
    async with desk(1, 100) as d:
        d.learn(1.0)
        crowd = [d.ask(LONG, changed(n), "greedy") for n in range(60)]
        await eventually(lambda: d.queue.waiting == 59)
        single = d.ask(2 * LONG, OTHER, "modest")
        await eventually(lambda: d.queue.waiting == 60)
        d.engine.gate.set()
        await single
        assert d.engine.asked.index(OTHER) <= 4
        await asyncio.gather(*crowd)


async def test_a_full_queue_makes_room_for_a_client_that_has_nothing_in_it() -> None:
    async with desk(1, 3) as d:
        crowd = [d.ask(LONG + n, changed(n), "greedy") for n in range(4)]
        await eventually(lambda: d.queue.waiting == 3)
        with pytest.raises(OverloadedError):
            await d.ask(LONG, OTHER, "greedy")
        single = d.ask(LONG, OTHER, "modest")
        with pytest.raises(OverloadedError):
            await crowd[3]
        d.engine.gate.set()
        await asyncio.gather(single, *crowd[:3])


async def test_equal_questions_are_computed_once() -> None:
    async with desk(2, 5) as d:
        calls = [d.ask(fresh=False) for _ in range(4)]
        await eventually(lambda: d.queue.joined == 3)
        assert (d.queue.running, d.queue.waiting) == (1, 0)
        d.engine.gate.set()
        answers = await asyncio.gather(*calls)
        assert {answer.xs for answer in answers} == {known_proof().xs}
        assert d.engine.asked == [QUESTION]
        assert (await d.ask(fresh=False)).worker is None
        assert (await d.ask(fresh=True)).worker is not None
        assert d.queue.known.hits == 1


async def test_a_client_that_leaves_does_not_take_the_answer_from_another() -> None:
    async with desk(1, 5) as d:
        first, second = d.ask(fresh=False), d.ask(fresh=False)
        await eventually(lambda: d.queue.joined == 1)
        first.cancel()
        await asyncio.wait({first})
        assert d.queue.running == 1
        d.engine.gate.set()
        assert (await second).xs == known_proof().xs
        assert d.engine.stopped == 0


async def test_of_a_hundred_who_ask_the_same_half_may_leave_and_it_is_computed_once() -> None:
    async with desk(2, 5) as d:
        calls = [d.ask(fresh=False, client=str(number % 7)) for number in range(100)]
        await eventually(lambda: d.queue.joined == 99)
        for call in calls[::2]:
            call.cancel()
        await asyncio.wait(calls[::2])
        assert (d.queue.running, d.queue.waiting) == (1, 0)
        d.engine.gate.set()
        assert {answer.xs for answer in await asyncio.gather(*calls[1::2])} == {known_proof().xs}
        assert (d.engine.asked, d.engine.stopped) == ([QUESTION], 0)
        assert d.queue.running == 0


async def test_when_the_last_client_leaves_the_work_stops() -> None:
    async with desk(1, 5) as d:
        calls = [d.ask(fresh=False), d.ask(fresh=False)]
        await eventually(lambda: d.queue.joined == 1)
        for call in calls:
            call.cancel()
        await eventually(lambda: d.engine.stopped == 1)
        await eventually(lambda: d.queue.running == 0)


async def test_who_joins_with_more_time_outlasts_the_one_who_asked_first() -> None:
    clock = FakeClock()
    async with desk(1, 5, clock) as d:
        first = d.ask(10.0, fresh=False)
        await eventually(lambda: d.engine.asked)
        second = d.ask(LONG, fresh=False)
        await eventually(lambda: d.queue.joined == 1)
        clock.advance(11.0)
        with pytest.raises(DeadlineError):
            await first
        d.engine.gate.set()
        assert (await second).xs == known_proof().xs


async def test_the_work_of_a_lost_worker_is_done_by_the_next_one_before_all_else() -> None:
    async with desk(2, 5) as d:
        first, second, waiting = d.ask(), d.ask(), d.ask()
        await eventually(lambda: d.queue.running == 2 and d.queue.waiting == 1)
        order = [ticket.number for ticket in d.crew.tickets]
        d.crew.lose()
        assert (d.queue.running, d.queue.waiting) == (0, 3)
        assert [ticket.number for ticket in d.queue._line.order()][:2] == order
        fresh = ScriptedEngine()
        d.crew.begin(fresh)
        d.queue._hand_out()
        assert [(await call).xs for call in (first, second, waiting)] == [known_proof().xs] * 3


async def test_who_loses_two_workers_is_told_so() -> None:
    async with desk(1, 5) as d:
        call = d.ask()
        for _ in range(2):
            await eventually(lambda: d.queue.running)
            d.crew.lose()
            d.crew.begin(d.engine)
            d.queue._hand_out()
        with pytest.raises(WorkerLostError, match="told to be"):
            await call


async def test_without_time_for_a_second_worker_the_loss_is_told_at_once() -> None:
    clock = FakeClock()
    async with desk(1, 5, clock) as d:
        d.learn(4.5)
        call = d.ask(deadline=10.0)
        await eventually(lambda: d.queue.running)
        clock.advance(6.0)
        d.crew.lose()
        with pytest.raises(WorkerLostError):
            await call
        assert d.queue.waiting == 0


async def test_a_client_that_left_a_lost_worker_is_forgotten() -> None:
    async with desk(1, 5) as d:
        call = d.ask()
        await eventually(lambda: d.queue.running)
        call.cancel()
        await asyncio.wait({call})
        d.crew.lose()
        assert (d.queue.running, d.queue.waiting) == (0, 0)


async def test_what_others_take_of_the_cores_counts_before_a_promise_is_made() -> None:
    clock = FakeClock()
    async with desk(1, 4, clock, shut=False) as d:
        d.learn(1.0)
        d.queue.slowdown = lambda: 2.0
        with pytest.raises(DeadlineError, match="takes this server 2000 ms"):
            await d.ask(clock.monotonic() + 1.5)
        assert (await d.ask(clock.monotonic() + 2.5)).xs == known_proof().xs
        d.queue.slowdown = lambda: 1.0
        assert (await d.ask(clock.monotonic() + 1.5)).xs == known_proof().xs
