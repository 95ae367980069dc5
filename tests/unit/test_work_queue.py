"""The bounded queue: order, room, deadlines by a fake clock, and what happens to work nobody waits for."""

import asyncio
import threading

import pytest

from gpupool.core.clock import FakeClock
from gpupool.core.errors import DeadlineError
from gpupool.recompute.server.engine import Checkpoint
from gpupool.recompute.server.work import OverloadedError, WorkQueue
from polling import eventually

LONG = 1e6


async def test_work_runs_in_other_threads_and_returns() -> None:
    queue = WorkQueue(1, 0)
    assert await queue.run(lambda _: threading.current_thread() is not threading.main_thread(), LONG)
    queue.close()


async def test_an_error_of_the_work_comes_back() -> None:
    queue = WorkQueue(1, 0)
    with pytest.raises(ZeroDivisionError):
        await queue.run(lambda _: 1 // 0, LONG)
    await eventually(lambda: queue.running == queue.waiting == 0 or None)
    queue.close()


async def test_as_many_run_as_there_are_threads_and_as_many_wait_as_there_is_room() -> None:
    queue, gate = WorkQueue(2, 3), threading.Event()
    calls = [asyncio.create_task(queue.run(lambda _: gate.wait(30), LONG)) for _ in range(5)]
    await eventually(lambda: queue.running == 2 and queue.waiting == 3)
    with pytest.raises(OverloadedError) as fault:
        await queue.run(lambda _: None, LONG)
    assert fault.value.retry_after >= 1
    gate.set()
    assert await asyncio.gather(*calls) == [True] * 5
    assert await queue.drain(30)
    queue.close()


async def test_retry_after_grows_with_the_time_that_work_takes() -> None:
    queue, gate = WorkQueue(1, 0), threading.Event()
    call = asyncio.create_task(queue.run(lambda _: gate.wait(30), LONG))
    await eventually(lambda: queue.running)
    for seconds, expected in ((5.0, {4, 5}), (1e6, {60})):
        for _ in range(10):
            queue.note_seconds(seconds)
        with pytest.raises(OverloadedError) as fault:
            await queue.run(lambda _: None, LONG)
        assert fault.value.retry_after in expected
    gate.set()
    await call
    queue.close()


async def test_running_work_sees_its_deadline_pass() -> None:
    clock = FakeClock()
    queue, entered = WorkQueue(1, 0, clock), threading.Event()

    def work(checkpoint: Checkpoint) -> None:
        checkpoint()
        entered.set()
        while True:
            checkpoint()

    call = asyncio.create_task(queue.run(work, 100.0))
    await eventually(entered.is_set)
    clock.advance(100.0)
    with pytest.raises(DeadlineError):
        await call
    queue.close()


async def test_a_deadline_that_has_passed_starts_nothing() -> None:
    queue, started = WorkQueue(1, 0, FakeClock()), threading.Event()
    with pytest.raises(DeadlineError):
        await queue.run(lambda _: started.set(), 0.0)
    assert await queue.run(lambda _: True, LONG)
    assert not started.is_set()
    queue.close()


async def test_draining_gives_up_in_time() -> None:
    queue, gate = WorkQueue(1, 0), threading.Event()
    call = asyncio.create_task(queue.run(lambda _: gate.wait(30), LONG))
    await eventually(lambda: queue.running)
    assert not await queue.drain(0.01)
    gate.set()
    assert await call
    assert await queue.drain(30)
    queue.close()
