"""Standard output and error. A command says in words that its output cannot be written; what serves goes on serving.

The disk under a log runs full or hangs, whoever reads a pipe leaves or stops reading, a terminal is paused, a service
starts with its streams closed. Lines are lost then, and nothing else. A closed stream matters also because its number
goes to the next file or socket that is opened, and log lines would end up in there.
"""

import atexit
import io
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO

from gpupool.core.errors import EnvironmentProblemError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STREAMS: Final = ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_WRONLY), (2, "stderr", os.O_WRONLY))
_PIECE: Final = 64 * 1024
_ROOM: Final = 1024 * 1024
"""Bytes that may wait for a reader that is slow."""
_END_SECONDS: Final = 1.0
"""For the last lines, where nobody reads them."""


class _Careless(io.FileIO):
    """A file that takes every write, and drops what cannot be written now."""

    terminal = False

    def isatty(self) -> bool:
        """Tell whether a terminal stands at the end, however far away."""
        return self.terminal

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write what can be written; tell that it was all."""
        with suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes


class _Outlet:
    """A pipe in the place of a stream, and a thread that carries on what comes: it may block where nobody else must."""

    def __init__(self, name: str) -> None:
        self._name, self._stream = name, getattr(sys, name)
        self._stream.flush()
        self._reading, self.descriptor = os.pipe()
        os.set_blocking(self.descriptor, False)
        self._make_room()
        self._thread = threading.Thread(target=self._carry, name=f"{name}-outlet", daemon=True)
        self._thread.start()
        setattr(sys, name, _lasting(self.descriptor, self._stream))

    def _make_room(self) -> None:
        with suppress(ImportError, AttributeError, OSError):
            import fcntl

            fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, _ROOM)

    def _carry(self) -> None:
        target = self._stream.fileno()
        while data := os.read(self._reading, _PIECE):
            with suppress(OSError):
                while data:
                    data = data[os.write(target, data) :]

    def end(self) -> None:
        """Give the stream back, and what is on its way a moment to arrive."""
        setattr(sys, self._name, self._stream)
        os.close(self.descriptor)
        self._thread.join(_END_SECONDS)


class _Wordy(io.FileIO):
    """A file that says in words, once, that it cannot be written; a reader who has left is the command's affair."""

    _told = False

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write; EnvironmentProblemError at the first failure, and nothing at all after it."""
        size = memoryview(data).nbytes
        # Nothing is what others write to try what kind of stream this is.
        if self._told or not size:
            return size
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._told = True
            raise EnvironmentProblemError(
                f"Standard output cannot be written: {error.strerror}.",
                remedy="Send it to a disk that has room, or to a program that reads it.",
            ) from error


_outlets: Final[dict[str, _Outlet]] = {}


def open_missing() -> None:
    """Put the null device in the place of standard streams that are closed; called before anything is opened."""
    for number, name, mode in _STREAMS:
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one, since those below it are open by now.
            os.set_inheritable(os.open(os.devnull, mode), True)
            setattr(sys, name, os.fdopen(number, "r" if mode == os.O_RDONLY else "w", closefd=False))


def put_failures_in_words() -> None:
    """From now on standard output that cannot be written raises EnvironmentProblemError, once."""
    stream = sys.stdout
    if stream is sys.__stdout__ and isinstance(stream, io.TextIOWrapper):
        raw = _Wordy(stream.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            raw if stream.write_through else io.BufferedWriter(raw),
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )


def outlive_failures() -> None:
    """From now on a line that cannot be written to standard output or error is dropped, and never waited for."""
    for name in ("stdout", "stderr"):
        if hasattr(os, "set_blocking"):
            _outlets[name] = _Outlet(name)
        else:  # Windows
            stream = getattr(sys, name)
            stream.flush()
            setattr(sys, name, _lasting(stream.fileno(), stream))
    atexit.register(finish)


def finish() -> None:
    """Let the last lines out; for the end of the process, after which nothing is written any more."""
    while _outlets:
        _outlets.popitem()[1].end()


def log_descriptor() -> int:
    """Return what whoever writes many lines at once may write to, without waiting; else as standard error."""
    outlet = _outlets.get("stderr")
    return 2 if outlet is None else outlet.descriptor


def _lasting(descriptor: int, like: TextIO) -> TextIO:
    raw = _Careless(descriptor, "w", closefd=False)
    raw.terminal = like.isatty()
    return io.TextIOWrapper(raw, like.encoding, "replace", write_through=True)
