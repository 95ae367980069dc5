"""A worker that hangs is told from one that works, waits or was frozen; and what the queue knows of progress."""

import asyncio
import threading

from gpupool.core.clock import FakeClock
from gpupool.recompute.server.engine import Checkpoint
from gpupool.recompute.server.rates import Rates
from gpupool.recompute.server.watchdog import LOOKS, Watchdog, watch
from gpupool.recompute.server.work import WorkQueue
from polling import eventually

LONG = 1e6


def test_work_that_stays_at_one_place_is_stuck_and_other_work_is_not() -> None:
    progress = {1: 5, 2: 0}
    watchdog = Watchdog(lambda: dict(progress))
    counts = []
    for _ in range(LOOKS + 1):
        counts.append(watchdog.look())
        progress[2] += 1
    assert counts == [0] * LOOKS + [1]


def test_one_step_is_enough_to_count_as_alive() -> None:
    progress = {1: 5}
    watchdog = Watchdog(lambda: dict(progress))
    for _ in range(5):
        for _ in range(LOOKS):
            assert watchdog.look() == 0
        progress[1] += 1


def test_new_work_under_the_same_count_is_not_taken_for_the_old_one() -> None:
    jobs = iter(range(1000))
    watchdog = Watchdog(lambda: {next(jobs): 0})
    assert {watchdog.look() for _ in range(100)} == {0}


async def test_the_watch_ends_with_the_reason() -> None:
    error = await watch(lambda: {1: 0, 2: 0}, 0.01)
    assert error.code == "stuck_worker"
    assert "2 of the workers" in error.message


async def test_the_queue_counts_the_steps_of_what_runs_and_not_of_what_waits() -> None:
    queue, gate, steps = WorkQueue(1, 1), threading.Event(), 3

    def work(checkpoint: Checkpoint) -> None:
        for _ in range(steps - 1):
            checkpoint()
        gate.wait(30)

    calls = [asyncio.create_task(queue.run(work, LONG)) for _ in range(2)]
    await eventually(lambda: list(queue.progress().values()) == [steps] and queue.waiting == 1)
    gate.set()
    await asyncio.gather(*calls)
    await eventually(lambda: queue.progress() == {})
    queue.close()


async def test_the_wait_is_what_all_threads_still_have_to_do() -> None:
    clock, gate = FakeClock(), threading.Event()
    queue = WorkQueue(2, 5, clock)
    assert queue.expected_wait() == 0
    calls = [asyncio.create_task(queue.run(lambda _: gate.wait(30), LONG, expected=4.0)) for _ in range(2)]
    await eventually(lambda: queue.running == 2)
    assert queue.expected_wait() == 4.0
    calls.append(asyncio.create_task(queue.run(lambda _: gate.wait(30), LONG, expected=2.0)))
    await eventually(lambda: queue.waiting == 1)
    assert queue.expected_wait() == 5.0
    clock.advance(3.0)
    assert queue.expected_wait() == 2.0
    clock.advance(30.0)
    assert queue.expected_wait() == 1.0
    gate.set()
    await asyncio.gather(*calls)
    queue.close()


def test_the_best_time_is_of_late_and_doubt_lets_it_be_tried_again() -> None:
    rates = Rates()
    assert rates.best("proof", 3) is None
    rates.doubt("proof", 3)
    for seconds in (9.0, 4.0, 6.0):
        rates.learn("proof", 3, seconds)
    assert rates.best("proof", 3) == 4.0
    assert rates.best("quality", 3) is rates.best("proof", 4) is None
    for _ in range(30):
        rates.doubt("proof", 3)
    assert (rates.best("proof", 3) or 9) < 0.2
    for _ in range(8):
        rates.learn("proof", 3, 7.0)
    assert rates.best("proof", 3) == 7.0
