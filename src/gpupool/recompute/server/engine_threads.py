"""The threads of a worker process: each works on one question, which can be given up at any checkpoint."""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import structlog

from gpupool.core.clock import Clock, SystemClock
from gpupool.core.errors import DeadlineError, GpupoolError, UnsupportedError
from gpupool.recompute.server.engine import AnyEngine, EngineFaultError, SolverEngine
from gpupool.recompute.server.messages import Ask, Done, Failed
from gpupool.recompute.server.questions import level_of
from gpupool.solvers.questions import SolveQuestion

log = structlog.get_logger(__name__)


class _Job:
    def __init__(self, ask: Ask, clock: Clock) -> None:
        self.ask, self._clock = ask, clock
        self._deadline = clock.monotonic() + ask.seconds
        self._abandoned = threading.Event()
        self.steps = 0

    def abandon(self) -> None:
        self._abandoned.set()

    def checkpoint(self) -> None:
        self.steps += 1
        if self._abandoned.is_set() or self._clock.monotonic() >= self._deadline:
            raise DeadlineError

    def answer(self, engine: AnyEngine) -> Done:
        self.checkpoint()
        began = time.perf_counter()
        xs = self._work(engine)
        return Done(self.ask.number, tuple(map(int, xs)), time.perf_counter() - began)

    def _work(self, engine: AnyEngine) -> Iterable[int]:
        question = self.ask.question
        if isinstance(engine, SolverEngine):
            if isinstance(question, SolveQuestion):
                return engine.solve(question, self.checkpoint)
        elif not isinstance(question, SolveQuestion):
            work = engine.proof if self.ask.kind == "proof" else engine.quality
            return work(question, self.checkpoint)
        raise UnsupportedError(f"This engine has no {self.ask.kind}.")


class EngineThreads:
    """Answers questions in a fixed number of threads; to be called from one thread."""

    def __init__(
        self,
        engine: AnyEngine,
        threads: int,
        tell: Callable[[Done | Failed], None],
        clock: Clock | None = None,
    ) -> None:
        """``tell`` is called in one of the threads, once for each question that was started."""
        self._engine, self._tell = engine, tell
        self._clock: Clock = clock or SystemClock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="recompute")
        self._jobs: dict[int, _Job] = {}

    def start(self, ask: Ask) -> None:
        """Work on a question as soon as a thread is free."""
        job = self._jobs[ask.number] = _Job(ask, self._clock)
        self._pool.submit(job.answer, self._engine).add_done_callback(partial(self._end, ask))

    def abandon(self, number: int) -> None:
        """Let a question end at its next checkpoint; one that has ended already is no matter."""
        job = self._jobs.get(number)
        if job is not None:
            job.abandon()

    def progress(self) -> dict[int, int]:
        """Return the checkpoints that each question has passed."""
        return {number: job.steps for number, job in list(self._jobs.items())}

    def close(self) -> None:
        """Give up everything; does not wait for it."""
        for job in list(self._jobs.values()):
            job.abandon()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _end(self, ask: Ask, future: "Future[Done]") -> None:
        del self._jobs[ask.number]
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._tell(future.result())
        elif isinstance(error, GpupoolError):
            self._tell(_failed(ask.number, error))
        else:
            log.error("engine_failed", kind=ask.kind, level=level_of(ask.question), exc_info=error)
            fault = EngineFaultError(f"The engine failed in an unexpected way: {type(error).__name__}.")
            self._tell(_failed(ask.number, fault))


def _failed(number: int, error: GpupoolError) -> Failed:
    return Failed(number, error.code, error.message, error.remedy)
