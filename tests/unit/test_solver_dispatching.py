"""Every partial proof is answered while one worker lives, in time, whatever the others do; in virtual time."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

import virtual_time
from gpupool.balancing import NodeLimits, Outcome, Pool
from gpupool.core.errors import DeadlineError, UnavailableError
from gpupool.recompute.solver_front.attempts import Asked, AttemptError
from gpupool.recompute.solver_front.dispatching import MOST_PATIENCE, POLICY, Course, Dispatcher
from gpupool.solvers.questions import SolveQuestion, UnsolvedError

NUMBERS = itertools.count()
Worker = Callable[[float], Awaitable[bytes]]
PROOF = b"p" * 448
LIMIT = 25.0


def asked(strength: int = 2) -> Asked:
    number = next(NUMBERS)
    return Asked(
        SolveQuestion(number.to_bytes(128, "big"), bytes(32), 28, strength), "0.48.0", f"req-{number}"
    )


def taking(seconds: float) -> Worker:
    async def worker(_: float) -> bytes:
        await asyncio.sleep(seconds)
        return PROOF

    return worker


async def dead(_: float) -> bytes:
    raise AttemptError(Outcome.FAILED, "connection refused")


async def hung(seconds: float) -> bytes:
    await asyncio.sleep(seconds)
    raise AttemptError(Outcome.TIMED_OUT, "silence")


async def proofless(_: float) -> bytes:
    raise AttemptError(Outcome.OK, "no proof", unsolved=True)


async def busy(_: float) -> bytes:
    raise AttemptError(Outcome.CANCELLED, "it answered 429")


class Stage:
    """A dispatcher over workers that do what their functions do."""

    def __init__(self, workers: dict[str, Worker], told: dict[str, float] | None = None) -> None:
        self.workers, self.log = workers, list[tuple[float, str]]()
        loop = asyncio.get_running_loop()

        def ask(name: str, _: Asked, seconds: float) -> Awaitable[bytes]:
            self.log.append((loop.time(), name))
            return self.workers[name](seconds)

        pool = Pool(POLICY)
        self.dispatcher = Dispatcher(pool, ask, loop.time, told_seconds=lambda k, strength: told or {})
        pool.set_nodes(dict.fromkeys(workers, NodeLimits()))

    async def solve(self, strength: int = 2, course: Course | None = None) -> tuple[bytes, float]:
        began = asyncio.get_running_loop().time()
        proof = await self.dispatcher.solve(asked(strength), began + LIMIT, course)
        return proof, asyncio.get_running_loop().time() - began

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.log]


def test_a_failure_leads_to_the_next_worker_at_once() -> None:
    async def work() -> None:
        stage, course = Stage({"a": dead, "b": dead, "c": taking(2)}), Course()
        assert await stage.solve(course=course) == (PROOF, 2)
        assert (course.tries, course.worker, len(course.faults)) == (3, "c", 2)

    virtual_time.run(work())


def test_silence_leads_to_a_second_worker_well_before_the_limit() -> None:
    async def work() -> None:
        stage = Stage({"a": hung, "b": taking(2)}, {"a": 1.0, "b": 2.0})
        proof, seconds = await stage.solve()
        assert proof == PROOF
        assert stage.names == ["a", "b"]
        assert seconds <= MOST_PATIENCE + 2 < LIMIT / 2

    virtual_time.run(work())


def test_the_slow_one_that_was_asked_first_may_still_be_the_first_to_answer() -> None:
    async def work() -> None:
        stage, course = Stage({"a": taking(12), "b": taking(20)}, {"a": 4.0, "b": 5.0}), Course()
        assert await stage.solve(course=course) == (PROOF, 12)
        assert (course.worker, stage.names) == ("a", ["a", "b"])
        views = {view.name: view for view in stage.dispatcher.pool.view(asyncio.get_running_loop().time())}
        assert views["b"].counts[Outcome.CANCELLED] == 1
        assert views["b"].outstanding == views["a"].outstanding == 0

    virtual_time.run(work())


def test_a_worker_that_comes_back_within_the_time_answers() -> None:
    async def work() -> None:
        stage = Stage({"a": dead})
        asyncio.get_running_loop().call_later(15, stage.workers.update, {"a": taking(2)})
        proof, seconds = await stage.solve()
        assert proof == PROOF
        assert seconds < 20

    virtual_time.run(work())


def test_workers_that_fail_for_good_are_not_asked_without_end() -> None:
    async def work() -> None:
        stage, course = Stage({"a": dead, "b": dead}), Course()
        with pytest.raises(DeadlineError):
            await stage.solve(course=course)
        assert course.faults == ["a: connection refused", "b: connection refused"]
        assert 10 <= course.tries <= 40

    virtual_time.run(work())


def test_without_any_worker_it_is_said_that_there_is_none() -> None:
    async def work() -> None:
        with pytest.raises(UnavailableError):
            await Stage({}).solve()
        assert asyncio.get_running_loop().time() == LIMIT

    virtual_time.run(work())


def test_with_silent_workers_only_the_time_runs_out() -> None:
    async def work() -> None:
        stage = Stage({"a": hung, "b": hung, "c": hung})
        with pytest.raises(DeadlineError, match="3 tries"):
            await stage.solve()

    virtual_time.run(work())


@pytest.mark.parametrize("others", [{}, {"b": proofless, "c": taking(1)}])
def test_that_there_is_no_proof_is_believed_when_two_say_so_or_nobody_else_is_there(
    others: dict[str, Worker],
) -> None:
    async def work() -> None:
        stage = Stage({"a": proofless, **others}, {"a": 1, "b": 2, "c": 9})
        with pytest.raises(UnsolvedError):
            await stage.solve()
        assert stage.names == ["a", *list(others)[:1]]
        assert asyncio.get_running_loop().time() < 1

    virtual_time.run(work())


def test_one_broken_worker_cannot_say_for_all_that_there_is_no_proof() -> None:
    async def work() -> None:
        stage = Stage({"a": proofless, "b": taking(2)}, {"a": 1, "b": 2})
        assert await stage.solve() == (PROOF, 2)

    virtual_time.run(work())


def test_the_first_question_goes_to_whoever_says_it_is_fastest() -> None:
    async def work() -> None:
        stage = Stage({"a": taking(5), "b": taking(0.3), "c": taking(2)}, {"a": 5.0, "b": 0.3, "c": 2.0})
        assert await stage.solve() == (PROOF, 0.3)
        assert stage.names == ["b"]

    virtual_time.run(work())


def test_many_at_once_are_spread_by_speed() -> None:
    async def work() -> None:
        told = {"fast": 0.5, "slow": 5.0}
        lines = {name: asyncio.Lock() for name in told}

        def queued(name: str) -> Worker:
            async def worker(_: float) -> bytes:
                async with lines[name]:
                    await asyncio.sleep(told[name])
                return PROOF

            return worker

        stage = Stage({name: queued(name) for name in told}, told)
        await asyncio.gather(*(stage.solve() for _ in range(22)))
        assert stage.names.count("fast") >= 18
        assert stage.names.count("slow") >= 1

    virtual_time.run(work())


def test_a_busy_worker_is_passed_over_and_not_put_out_of_use() -> None:
    async def work() -> None:
        stage = Stage({"a": busy, "b": taking(1)}, {"a": 0.5, "b": 1.0})
        for _ in range(10):
            assert (await stage.solve())[0] == PROOF
        views = {view.name: view for view in stage.dispatcher.pool.view(asyncio.get_running_loop().time())}
        assert views["a"].failures_in_row == 0

    virtual_time.run(work())


def test_whoever_stops_waiting_ends_the_work() -> None:
    async def work() -> None:
        ended = asyncio.Event()

        async def worker(seconds: float) -> bytes:
            try:
                await asyncio.sleep(seconds)
            finally:
                ended.set()
            return PROOF

        stage = Stage({"a": worker})
        task = asyncio.create_task(stage.solve())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait({task})
        assert ended.is_set()
        assert stage.dispatcher.pool.view(2.0)[0].outstanding == 0

    virtual_time.run(work())
