"""Locks of a state folder: one process of a kind at a time, and the kernel gives the lock back even after SIGKILL."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpupool.core.errors import ConflictError


@contextmanager
def held_alone(lock: Path, taken: Callable[[], ConflictError]) -> Iterator[None]:
    """Hold a lock file (made where there is none); raise what ``taken`` returns where another process holds it."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise taken() from error
        yield
    finally:
        os.close(descriptor)
