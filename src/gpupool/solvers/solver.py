"""A solver as the rest of the program sees it: one question at a time, given up whenever the asker wants.

Giving up means killing the process that solves, since nothing less stops it; the next question starts another one,
which takes a third of a second. The release of chia_rs is told, because releases do not understand each other's plots.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import IO, Any, Final

from gpupool.core.errors import GpupoolError, InvalidInputError
from gpupool.solvers.child import PACKAGE
from gpupool.solvers.questions import SolveQuestion, UnsolvedError

Checkpoint = Callable[[], None]
"""Called several times a second; gives the work up by raising."""
_LOOK_SECONDS: Final = 0.05
_START_SECONDS: Final = 60.0
_ENDED: Final[dict[str, Any]] = {"ended": True}


def installed_release() -> str | None:
    """Return the release of chia_rs that is installed here, without loading it; None where there is none."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return None


class SolverLostError(GpupoolError):
    """The process that solves ended in the middle of its work, or could not be started."""

    code = "solver_lost"
    status = 503
    default_remedy = (
        "Ask another solver. If it happens again, check that chia_rs is installed and 300 MB are free."
    )


class Solver:
    """One process that solves. Not for two threads at once."""

    def __init__(self, cores: int = 0) -> None:
        """``cores``: how many it may use; 0 means all. The process is started by the first question or `version`."""
        if not 0 <= cores <= 1024:
            raise InvalidInputError(f"A solver may use 0 (all) to 1024 cores, not {cores}.")
        self._cores = cores
        self._numbers = count(1)
        self._process: subprocess.Popen[str] | None = None
        self._heard: queue.Queue[dict[str, Any]] = queue.Queue()
        self._version = ""

    @property
    def version(self) -> str:
        """The release of chia_rs; raises SolverLostError where there is none."""
        self._running()
        return self._version

    def solve(self, question: SolveQuestion, checkpoint: Checkpoint = lambda: None) -> bytes:
        """Return the whole proof, whose quality was compared with the partial one's.

        Raises UnsolvedError, SolverLostError, or what ``checkpoint`` raises.
        """
        return self._ask(question, {}, checkpoint)

    def check(self, question: SolveQuestion, proof: bytes, checkpoint: Checkpoint = lambda: None) -> None:
        """Raise UnsolvedError where ``proof`` has another quality than the partial one; takes a moment.

        The quality covers a quarter of a proof's bits: what was made up or belongs to another plot is found, but only
        whoever knows the challenge can tell that all of it is right.
        """
        self._ask(question, {"proof": proof.hex()}, checkpoint)

    def _ask(self, question: SolveQuestion, more: Mapping[str, str], checkpoint: Checkpoint) -> bytes:
        checkpoint()
        process, number = self._running(), next(self._numbers)
        asked = {
            "number": number,
            "partial_proof": question.partial_proof.hex(),
            "plot_id": question.plot_id.hex(),
            "k": question.k,
            "strength": question.strength,
            **more,
        }
        try:
            _pipe(process.stdin).write(json.dumps(asked) + "\n")
            _pipe(process.stdin).flush()
        except OSError as error:
            self.close()
            raise SolverLostError from error
        try:
            answer = self._wait(checkpoint)
        except BaseException:
            self.close()
            raise
        if answer is _ENDED or answer.get("number") != number:
            self.close()
            raise SolverLostError
        if "proof" not in answer:
            raise UnsolvedError(f"The partial proof could not be completed: {answer.get('fault')}.")
        return bytes.fromhex(answer["proof"])

    def close(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            with suppress(OSError):
                _pipe(process.stdin).close()

    def _wait(self, checkpoint: Checkpoint) -> dict[str, Any]:
        while True:
            try:
                return self._heard.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                checkpoint()

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        command = [sys.executable, "-m", "gpupool.solvers.child", str(os.getpid()), str(self._cores)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        heard: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=_listen, args=(process, heard), daemon=True, name="solver").start()
        self._process, self._heard = process, heard
        try:
            hello = heard.get(timeout=_START_SECONDS)
        except queue.Empty:
            hello = _ENDED
        if "ready" not in hello:
            self.close()
            raise SolverLostError(
                "The solver did not start: chia_rs is not installed, or does not load here."
            )
        self._version = str(hello["ready"])
        return process


def _listen(process: "subprocess.Popen[str]", heard: "queue.Queue[dict[str, Any]]") -> None:
    with _pipe(process.stdout) as lines:
        for line in lines:
            heard.put(json.loads(line))
    heard.put(_ENDED)


def _pipe(stream: IO[str] | None) -> IO[str]:
    """Return a pipe that `Popen` was told to make."""
    if stream is None:
        raise SolverLostError
    return stream
