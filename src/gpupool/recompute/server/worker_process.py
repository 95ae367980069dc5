"""The server's end of a worker process: two pipes, each served by a thread that may block where a worker hangs.

Threads and plain pipes rather than the loop's own, since the loop that can look at sockets on Windows has no pipes.
"""

import asyncio
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO

from gpupool.recompute.server.messages import BrokenMessageError, Message, encode, receive


class WorkerProcess:
    """One process, from its start to its end."""

    def __init__(
        self,
        engine: str,
        threads: int,
        log_level: str,
        heard: Callable[[Message], None],
    ) -> None:
        """Start it; raises OSError where the system cannot. ``heard`` is called in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self.ended: asyncio.Future[int] = self._loop.create_future()
        """Exit status, negative for a signal."""
        command = [
            sys.executable,
            *(["-P"] if sys.flags.safe_path else []),
            "-m",
            "gpupool.recompute.server.worker",
        ]
        command += ["--engine", engine, "--threads", str(threads)]
        command += ["--parent", str(os.getpid()), "--log-level", log_level]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        for work, stream in ((self._write, self._process.stdin), (self._read, self._process.stdout)):
            threading.Thread(target=work, args=(stream,), name="worker-pipe", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Send a message, some time; one to a process that is gone is lost."""
        self._outbox.put(message)

    def close(self) -> None:
        """Let it end by itself."""
        self._outbox.put(None)

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self.close()

    def _write(self, stream: BinaryIO) -> None:
        with suppress(OSError), stream:
            while (message := self._outbox.get()) is not None:
                stream.write(encode(message))
                stream.flush()

    def _read(self, stream: BinaryIO) -> None:
        try:
            while (message := receive(stream)) is not None:
                self._in_loop(self._heard, message)
        except BrokenMessageError:
            self._process.kill()
        stream.close()
        status = self._process.wait()
        self._outbox.put(None)
        self._in_loop(self._settle, status)

    def _settle(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(status)

    def _in_loop(self, call: Callable[..., None], argument: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server has ended already
            self._loop.call_soon_threadsafe(call, argument)
