"""The harvester's library under test: loaded into the test itself, in front of a sidecar that does what the test says.

The library reads its settings once, when it is loaded, and keeps its state for good. So each `Shim` is a copy of the
file under a name of its own, which the system takes for another library.
"""

import contextlib
import ctypes
import os
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final
from unittest import mock

from gpupool.pos.parameters import dropped_bits
from gpupool.pos.truncation import truncate, truncate_twice
from gpupool.recompute.demo import KnownProof
from official_decompressor import Config, ProofRequest, QualityRequest

FAILED, OK, NO_PROOF, WRONG_VERSION, INVALID = 0, 1, 3, 4, 6
PATIENCE: Final = 30.0
"""Longer than any call may take on the busiest machine, shorter than for ever."""


Behaviour = Callable[[socket.socket, bytes], None]
"""What is done about a request whose body is given."""


class Sidecar:
    """Takes connections at a port or a path and leaves each request to ``behave``, which may write whatever it likes."""

    def __init__(self, behave: Behaviour, path: Path | None = None) -> None:
        self.behave = behave
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self._path = path
        self._open: set[socket.socket] = set()
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
            self.address = f"unix:{path}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                taken, _ = self._listener.accept()
                self.connections += 1
                self._open.add(taken)
                thread = threading.Thread(target=self._serve, args=(taken,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, taken: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), taken, taken.makefile("rb") as reading:
            while True:
                body = self._read(reading)
                self.behave(taken, body)
        self._open.discard(taken)

    def _read(self, reading: BinaryIO) -> bytes:
        lines = []
        while (line := reading.readline()) != b"\r\n":
            if not line:
                raise EOFError
            lines.append(line.decode())
        head = "".join(lines)
        size = int(next(line.split(":")[1] for line in lines if line.lower().startswith("content-length")))
        body = reading.read(size)
        self.heads.append(head)
        self.bodies.append(body)
        return body

    def hang_up(self) -> None:
        """End every connection, as a sidecar does that is replaced."""
        for taken in list(self._open):
            with contextlib.suppress(OSError):
                taken.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self.hang_up()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@contextmanager
def sidecar(behave: Behaviour, path: Path | None = None) -> Iterator[Sidecar]:
    """Run one for as long as the block lasts."""
    running = Sidecar(behave, path)
    try:
        yield running
    finally:
        running.close()


def reply(body: bytes, status: int = 200, *headers: str) -> bytes:
    """Return a whole answer."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


NUMBERS: Final = tuple(range(1000, 1064))


def right(body: bytes) -> bytes:
    """Return the 64 numbers or the pair that `answers` gives."""
    return struct.pack(">2I", 7, 9) if b"challenge" in body else struct.pack(">64I", *NUMBERS)


def answers(taken: socket.socket, body: bytes) -> None:
    """Be a good sidecar."""
    taken.sendall(reply(right(body)))


class Shim:
    """One copy of the library with settings of its own."""

    def __init__(self, library: Path, **settings: str) -> None:
        """``settings``: SIDECAR, TIMEOUT_MS, FALLBACK, LOG."""
        copy = library.with_name(f"{library.stem}-{os.urandom(6).hex()}.so")
        shutil.copy(library, copy)
        named = {f"GPUPOOL_HARVESTER_{name.upper()}": value for name, value in settings.items()}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUPOOL_")}
        with mock.patch.dict(os.environ, kept | named, clear=True):
            self.library = ctypes.CDLL(str(copy))
        self.log = Path(settings["log"]) if "log" in settings else None
        self.context = ctypes.c_void_p()
        self.created = self.create()

    def create(self, size: int = ctypes.sizeof(Config), version: int = 1) -> int:
        """Make a context with one thread."""
        config = Config(api_version=version, thread_count=1, disable_affinity=1)
        made: int = self.library.grCreateContext(
            ctypes.byref(self.context), ctypes.byref(config), ctypes.c_size_t(size)
        )
        return made

    def proof(self, known: KnownProof, level: int = 1) -> tuple[int, tuple[int, ...]]:
        """Ask for a proof; return the result and the 64 numbers that stand in the request afterwards."""
        request = ProofRequest(level=level, plot_id=known.plot_id)
        for index, line_point in enumerate(truncate(known.xs, dropped_bits(min(level, 7)))):
            request.proof[index] = line_point
        result: int = self.library.grFetchProofForChallenge(self.context, ctypes.byref(request))
        return result, tuple(request.proof)

    def quality(self, known: KnownProof, level: int = 1) -> tuple[int, tuple[int, int]]:
        """Ask for the quality of the first four x; return the result, the smaller x and the larger one."""
        request = QualityRequest(plot_id=known.plot_id, challenge=known.challenge, level=level)
        for index, line_point in enumerate(truncate_twice(known.xs[:8], dropped_bits(min(level, 7)))):
            request.line_points[index].high = line_point >> 64
            request.line_points[index].low = line_point & (2**64 - 1)
        result: int = self.library.grGetFetchQualitiesXPair(self.context, ctypes.byref(request))
        return result, (request.x2, request.x1)

    def lines(self) -> list[str]:
        """Return the log's lines."""
        assert self.log is not None
        return self.log.read_text().splitlines() if self.log.exists() else []
