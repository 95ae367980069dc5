"""A worker process: the only one that loads an engine, a driver or numba. Started by the server, with pipes.

It ends when its server does, however that ended: at the end of its input, and on Linux also by the kernel's hand,
since a thread that hangs in a driver can keep the interpreter from noticing. Signals that a terminal or a service
manager sends to the whole group are for the server, which still has work to finish.
"""

import argparse
import faulthandler
import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import BinaryIO, Final

import structlog

from gpupool.core.errors import GpupoolError
from gpupool.core.lifeline import die_with_parent
from gpupool.core.logging import set_up_logging
from gpupool.recompute.server.engine import AnyEngine
from gpupool.recompute.server.engine_threads import EngineThreads
from gpupool.recompute.server.messages import (
    Ask,
    Cancel,
    Message,
    Ping,
    Pong,
    Ready,
    Unfit,
    encode,
    receive,
)

log = structlog.get_logger(__name__)
UNFIT_STATUS: Final = 3


def main() -> None:
    """Be a worker: arguments say which engine, how many threads, and whose child this is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True, help="MODULE:FUNCTION[:ARGUMENT] that returns an engine")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--log-level", default="INFO")
    given = parser.parse_args()
    incoming, outgoing = _take_pipes()
    die_with_parent(given.parent)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    faulthandler.enable()
    set_up_logging("recompute-worker", given.log_level)
    _Worker(outgoing, given.threads).serve(incoming, given.engine)
    # What still runs has nobody to answer to.
    os._exit(0)


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the pipes, moved to where nothing a library prints or reads can get into them."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return incoming, outgoing


class _Worker:
    def __init__(self, outgoing: BinaryIO, threads: int) -> None:
        self._outgoing, self._count = outgoing, threads
        self._lock = threading.Lock()
        self._threads: EngineThreads | None = None

    def serve(self, incoming: BinaryIO, engine: str) -> None:
        """Do what is asked until the input ends."""
        # In a thread of its own, so that the server is answered while this compiles.
        preparing = ThreadPoolExecutor(1, thread_name_prefix="prepare").submit(_prepared, engine)
        preparing.add_done_callback(self._begin)
        while (message := receive(incoming)) is not None:
            threads = self._threads
            if isinstance(message, Ping):
                self._tell(Pong({} if threads is None else threads.progress()))
            elif isinstance(message, Ask) and threads is not None:
                threads.start(message)
            elif isinstance(message, Cancel) and threads is not None:
                threads.abandon(message.number)

    def _begin(self, preparing: "Future[AnyEngine]") -> None:
        """Take questions with the engine that was prepared; a worker that has none says why and ends."""
        error = preparing.exception()
        if error is None:
            self._threads = EngineThreads(preparing.result(), self._count, self._tell)
            self._tell(Ready())
            return
        if not isinstance(error, GpupoolError):
            log.error("engine_not_prepared", exc_info=error)
            error = GpupoolError(f"The engine could not be prepared: {type(error).__name__}: {error}"[:500])
        self._tell(Unfit(error.code, error.message, error.remedy))
        os._exit(UNFIT_STATUS)

    def _tell(self, message: Message) -> None:
        try:
            with self._lock:
                self._outgoing.write(encode(message))
                self._outgoing.flush()
        except OSError:
            os._exit(0)


def _prepared(name: str) -> AnyEngine:
    """Import, compile and test the engine that ``module:function[:argument]`` returns."""
    module, function, *argument = name.split(":", 2)
    engine: AnyEngine = getattr(import_module(module), function)(*argument)
    return engine


if __name__ == "__main__":
    main()
