"""Threads that share the pairs of one request while there are cores to spare.

A request is always worked on by the thread that brought it. Where fewer requests than threads are in progress, idle
ones help, a few pairs at a time, and leave as soon as their core is wanted by another request: so a lone request is
fast, and many do not crowd the machine.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


class _Share(Generic[_T, _R]):
    """Items that several threads take turns in; the first fault ends the work of all."""

    def __init__(self, work: Callable[[_T], _R], items: Sequence[_T]) -> None:
        self._work = work
        self._left = list(enumerate(items))[::-1]
        self._lock = threading.Lock()
        self.results: dict[int, _R] = {}
        self.fault: BaseException | None = None

    def take_part(self, wanted: Callable[[], bool]) -> None:
        """Work until nothing is left, a fault occurred anywhere, or this thread is ``wanted`` elsewhere."""
        while not wanted():
            with self._lock:
                if self.fault is not None or not self._left:
                    return
                index, item = self._left.pop()
            try:
                result = self._work(item)
            except BaseException as fault:  # noqa: BLE001 - it is raised again by whoever brought the request
                self.fault = fault
                return
            self.results[index] = result


class Crew:
    """At most ``threads`` threads at work, as far as helping goes; those who bring requests are never held up."""

    def __init__(self, threads: int) -> None:
        self._free = threads
        self._lock = threading.Lock()
        self._pool = (
            ThreadPoolExecutor(threads - 1, thread_name_prefix="recompute-help") if threads > 1 else None
        )

    def close(self) -> None:
        """Let idle threads end."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def run(self, work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Return what ``work`` returns for each item, in order; raises what it raises first."""
        share = _Share(work, items)
        with self._at_work():
            helpers = self._engage(share, len(items) - 1)
            share.take_part(lambda: False)
        for helper in helpers:
            if not helper.cancel():
                helper.result()
        if share.fault is not None:
            raise share.fault
        return [share.results[index] for index in range(len(items))]

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._lock:
            self._free -= 1
        try:
            yield
        finally:
            with self._lock:
                self._free += 1

    def _engage(self, share: _Share[_T, _R], most: int) -> list[Future[None]]:
        if self._pool is None:
            return []
        return [self._pool.submit(self._help, share) for _ in range(min(most, self._free))]

    def _help(self, share: _Share[_T, _R]) -> None:
        with self._at_work():
            share.take_part(lambda: self._free < 0)
