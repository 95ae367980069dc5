"""Work off the event loop: a bounded queue in front of a fixed number of threads.

A request that would wait too long is refused at once instead of waiting in vain; one whose deadline passed while it
waited is never started; one whose client left, or whose deadline passes while it runs, stops at its next checkpoint.
"""

import asyncio
import itertools
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from gpupool.core.clock import Clock, SystemClock
from gpupool.core.errors import BusyError, DeadlineError
from gpupool.recompute.server.engine import Checkpoint

T = TypeVar("T")
_WEIGHT: Final = 0.2
"""How much the newest time counts in the mean that Retry-After is made of."""
_LONGEST_RETRY_SECONDS: Final = 60


class OverloadedError(BusyError):
    """As many requests wait here as may wait."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(
            f"The queue of this server is full; try again in {retry_after} s, or another server."
        )
        self.retry_after = retry_after


class _Job(Generic[T]):
    def __init__(
        self, queue: "WorkQueue", work: Callable[[Checkpoint], T], deadline: float, expected: float
    ) -> None:
        self._queue, self._work, self._deadline = queue, work, deadline
        self.expected = expected
        """Seconds of computing, as far as known; 0 where not."""
        self.steps = 0
        """Checkpoints that it has passed."""
        self.began: float | None = None
        """Monotonic time of its start; None while it waits."""
        self._abandoned = threading.Event()

    def seconds_left(self, now: float) -> float:
        """Return the expected rest of computing."""
        return self.expected if self.began is None else max(0.0, self.expected - (now - self.began))

    def abandon(self) -> None:
        """Let the work stop at its next checkpoint: nobody waits for it any more."""
        self._abandoned.set()

    def __call__(self) -> T:
        """Do the work, in a thread of the pool."""
        self.began = self._queue.clock.monotonic()
        self._checkpoint()
        return self._work(self._checkpoint)

    def _checkpoint(self) -> None:
        self.steps += 1
        if self._abandoned.is_set() or self._queue.clock.monotonic() >= self._deadline:
            raise DeadlineError


class WorkQueue:
    """Runs work in threads, in the order it came."""

    def __init__(self, threads: int, room: int, clock: Clock | None = None) -> None:
        self.threads, self.room = threads, room
        self.clock: Clock = clock or SystemClock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="recompute")
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job[Any]] = {}
        self._numbers = itertools.count()
        self._mean_seconds = 0.1

    @property
    def waiting(self) -> int:
        """Requests that wait for a thread."""
        return sum(job.began is None for job in self._present())

    @property
    def running(self) -> int:
        """Requests that are worked on."""
        return sum(job.began is not None for job in self._present())

    def progress(self) -> dict[int, int]:
        """Return for each request that is worked on, by a number of its own, how many checkpoints it has passed."""
        with self._lock:
            return {number: job.steps for number, job in self._jobs.items() if job.began is not None}

    def expected_wait(self) -> float:
        """Return the seconds until a thread is free for one more request, as far as times are known."""
        jobs = self._present()
        if len(jobs) < self.threads:
            return 0.0
        now = self.clock.monotonic()
        return sum(job.seconds_left(now) for job in jobs) / self.threads

    async def run(self, work: Callable[[Checkpoint], T], deadline: float, expected: float = 0.0) -> T:
        """Return what ``work`` returns in a thread; ``deadline`` is in seconds of the clock's monotonic time.

        ``expected``: seconds of computing, for those who ask when they would be served; 0 where not known.

        Raises OverloadedError at once where too many wait, DeadlineError where it is not done in time, or what the
        work raises. Cancelling this call takes the work out of the queue or stops it at its next checkpoint.
        """
        with self._lock:
            # Whoever finds a free thread does not wait, so the room is what may queue behind busy threads.
            if len(self._jobs) >= self.threads + self.room:
                raise OverloadedError(self._retry_after(len(self._jobs)))
            job = _Job(self, work, deadline, expected)
            number = next(self._numbers)
            self._jobs[number] = job
        started = self.clock.monotonic()
        future = self._pool.submit(job)
        future.add_done_callback(lambda _: self._forget(number))
        try:
            async with asyncio.timeout(max(0.0, deadline - started)):
                result = await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise DeadlineError from error
        finally:
            job.abandon()
        return result

    def note_seconds(self, seconds: float) -> None:
        """Learn how long one request took."""
        self._mean_seconds += _WEIGHT * (seconds - self._mean_seconds)

    async def drain(self, seconds: float) -> bool:
        """Wait until nothing waits or runs, at most ``seconds``; True when that is so."""
        deadline = self.clock.monotonic() + seconds
        while self._jobs:
            if self.clock.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    def close(self) -> None:
        """Take no more work; what waits is dropped, what runs stops when its caller is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _present(self) -> list[_Job[Any]]:
        with self._lock:
            return list(self._jobs.values())

    def _forget(self, number: int) -> None:
        with self._lock:
            del self._jobs[number]

    def _retry_after(self, jobs: int) -> int:
        seconds = jobs * self._mean_seconds / self.threads
        return max(1, min(_LONGEST_RETRY_SECONDS, math.ceil(seconds)))
