"""Standard output and error of processes that serve: a log that cannot be written is no reason to stop serving.

The disk under a log runs full, whoever read a pipe leaves, a service starts with its streams closed. Lines are lost
then, and nothing else. A closed stream matters also because its number goes to the next file or socket that is
opened, and log lines would end up in there.
"""

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STREAMS: Final = ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_WRONLY), (2, "stderr", os.O_WRONLY))


class _Careless(io.FileIO):
    """A file that takes every write, and drops what cannot be written."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write what can be written now; tell that it was all."""
        with suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes


def open_missing() -> None:
    """Put the null device in the place of standard streams that are closed; called before anything is opened."""
    for number, name, mode in _STREAMS:
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one, since those below it are open by now.
            os.set_inheritable(os.open(os.devnull, mode), True)
            setattr(sys, name, os.fdopen(number, "r" if mode == os.O_RDONLY else "w", closefd=False))


def outlive_failures() -> None:
    """From now on a line that cannot be written to standard output or error is dropped, and nobody is told."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        stream.flush()
        raw = _Careless(stream.fileno(), "w", closefd=False)
        lasting = io.TextIOWrapper(raw, stream.encoding, "replace", write_through=True)
        setattr(sys, name, lasting)
