"""Engines that a test server's worker processes load by name; the plot id of a question says what becomes of it."""

import os
import signal
import threading
import time
from pathlib import Path

from gpupool.core.errors import GpupoolError
from gpupool.devices.recovery.errors import DeviceFaultError, DeviceMemoryError
from gpupool.pos.errors import NoProofError
from gpupool.recompute.demo import known_proof
from gpupool.recompute.server.engine import Checkpoint, WrongAnswerError
from gpupool.recompute.server.questions import Question

ANSWER, SEGFAULT, SEGFAULT_ONCE, HANG, HANG_ONCE, SLOW = (bytes([number]) * 32 for number in range(6))
FOLDER = "GPUPOOL_TEST_FOLDER"
"""Where what happened is noted, and survives the worker."""


class ObedientEngine:
    """Does what it is asked to, including dying."""

    def proof(self, question: Question, checkpoint: Checkpoint) -> tuple[int, ...]:
        plot = question.plot_id
        if plot == SEGFAULT or (plot == SEGFAULT_ONCE and _first("segfault")):
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)
        if plot == HANG or (plot == HANG_ONCE and _first("hang")):
            threading.Event().wait()
        while plot == SLOW:
            _note("slow")
            try:
                checkpoint()
            except GpupoolError:
                _note("stopped")
                raise
            time.sleep(0.01)
        return known_proof().xs

    def quality(self, question: Question, checkpoint: Checkpoint) -> tuple[int, int]:
        return known_proof().xs[0], known_proof().xs[1]


def obedient() -> ObedientEngine:
    """An engine that is ready at once; it prints, as drivers do, where only messages belong."""
    print("a driver says hello")
    os.write(1, b"and so does its C part\n")
    return ObedientEngine()


class FaultyEngine(ObedientEngine):
    """A card that fails in one way at every question, or at the first one."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def proof(self, question: Question, checkpoint: Checkpoint) -> tuple[int, ...]:
        _note(f"asked {self._fault}")
        if self._fault.endswith(" once") and not _first(self._fault):
            return super().proof(question, checkpoint)
        raise FAULTS[self._fault.removesuffix(" once")]


FAULTS: dict[str, Exception] = {
    "surprise": RuntimeError("a library of the driver says something new"),
    "fault": DeviceFaultError("CUDA: cuLaunchKernel failed: CUDA_ERROR_ILLEGAL_ADDRESS."),
    "memory": DeviceMemoryError("CUDA: cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY."),
    "wrong": WrongAnswerError(),
    "blind": NoProofError(),
}


def faulty(fault: str) -> FaultyEngine:
    """An engine on a card with a fault: one of FAULTS, perhaps only ``once``."""
    return FaultyEngine(fault)


class SlowEngine(ObedientEngine):
    """A CPU that takes so long that every card is tried before it."""

    def proof(self, question: Question, checkpoint: Checkpoint) -> tuple[int, ...]:
        threading.Event().wait(0.05)
        return super().proof(question, checkpoint)


def slow() -> SlowEngine:
    """An engine that takes 50 ms."""
    return SlowEngine()


class HonestlyLost(ObedientEngine):
    """A CPU that finds no proof because there is none."""

    def proof(self, question: Question, checkpoint: Checkpoint) -> tuple[int, ...]:
        raise NoProofError


def finding_none() -> HonestlyLost:
    """An engine that never finds a proof."""
    return HonestlyLost()


def unfit() -> ObedientEngine:
    """An engine that does not pass its own test."""
    raise GpupoolError(
        "The answer to the known question is wrong.", remedy="Look at the memory of this machine."
    )


def crashing() -> ObedientEngine:
    """A driver that takes its process with it as soon as it is loaded."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def noted(folder: Path, what: str) -> bool:
    """Tell whether something has happened in any worker."""
    return (folder / what).exists()


def _note(what: str) -> None:
    Path(os.environ[FOLDER], what).touch()


def _first(what: str) -> bool:
    path = Path(os.environ[FOLDER], what)
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
