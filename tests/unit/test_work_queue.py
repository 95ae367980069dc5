"""The bounded queue: order, room, deadlines by a fake clock, lost workers, and work nobody waits for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpupool.core.clock import Clock, FakeClock
from gpupool.core.errors import DeadlineError
from gpupool.pos.errors import NoProofError
from gpupool.recompute.demo import demo_request, known_proof
from gpupool.recompute.server.questions import read_proof_question
from gpupool.recompute.server.tickets import Answer, WorkerLostError
from gpupool.recompute.server.work import OverloadedError, WorkQueue
from polling import eventually
from recompute_stage import ScriptedEngine, ThreadCrew

LONG = 1e6
QUESTION = read_proof_question(demo_request().model_dump_json().encode())


class Desk:
    """A queue, its crew and their engine."""

    def __init__(self, threads: int, room: int, clock: Clock | None) -> None:
        self.engine = ScriptedEngine()
        self.crew = ThreadCrew(self.engine, threads, clock)
        self.queue = WorkQueue(self.crew, room, clock)

    def ask(self, deadline: float = LONG, expected: float = 0.0) -> asyncio.Task[Answer]:
        return asyncio.create_task(self.queue.run("proof", QUESTION, deadline, expected))


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
        assert fault.value.retry_after >= 1
        d.engine.gate.set()
        assert [answer.xs for answer in await asyncio.gather(*calls)] == [known_proof().xs] * 5
        assert await d.queue.drain(30)


async def test_retry_after_grows_with_the_time_that_work_takes() -> None:
    async with desk(1, 0) as d:
        call = d.ask()
        await eventually(lambda: d.queue.running)
        for seconds, expected in ((5.0, {4, 5}), (1e6, {60})):
            for _ in range(10):
                d.queue.note_seconds(seconds)
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


async def test_the_wait_is_what_all_threads_still_have_to_do() -> None:
    clock = FakeClock()
    async with desk(2, 5, clock) as d:
        assert d.queue.expected_wait() == 0
        calls = [d.ask(expected=4.0) for _ in range(2)]
        await eventually(lambda: d.queue.running == 2)
        assert d.queue.expected_wait() == 4.0
        calls.append(d.ask(expected=2.0))
        await eventually(lambda: d.queue.waiting == 1)
        assert d.queue.expected_wait() == 5.0
        clock.advance(3.0)
        assert d.queue.expected_wait() == 2.0
        clock.advance(30.0)
        assert d.queue.expected_wait() == 1.0
        d.engine.gate.set()
        await asyncio.gather(*calls)


async def test_the_work_of_a_lost_worker_is_done_by_the_next_one_before_all_else() -> None:
    async with desk(2, 5) as d:
        first, second, waiting = d.ask(), d.ask(), d.ask()
        await eventually(lambda: d.queue.running == 2 and d.queue.waiting == 1)
        order = [ticket.number for ticket in d.crew.tickets]
        d.crew.lose()
        assert (d.queue.running, d.queue.waiting) == (0, 3)
        assert [ticket.number for ticket in d.queue._waiting][:2] == order
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
        call = d.ask(deadline=10.0, expected=4.0)
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
