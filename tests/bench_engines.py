"""Engines that are wrong in one way each, for worker processes of tests."""

import os
import signal
import threading

from gpupool.core.errors import NotFoundError
from gpupool.devices.recovery.errors import DeviceMemoryError
from gpupool.recompute.demo import known_proof
from gpupool.recompute.server.engine import Checkpoint
from gpupool.recompute.server.questions import Question


class _Lying:
    def proof(self, question: Question, checkpoint: Checkpoint) -> tuple[int, ...]:
        return tuple(range(64))

    def quality(self, question: Question, checkpoint: Checkpoint) -> tuple[int, int]:
        return 1, 2


class _Crashing(_Lying):
    def quality(self, question: Question, checkpoint: Checkpoint) -> tuple[int, int]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return 1, 2


class _Hanging(_Lying):
    def quality(self, question: Question, checkpoint: Checkpoint) -> tuple[int, int]:
        threading.Event().wait()
        return 1, 2


class _Limited(_Lying):
    """Right at C1 and C4, and at the other levels wrong in several ways."""

    def proof(self, question: Question, checkpoint: Checkpoint) -> tuple[int, ...]:
        self._at(question.level)
        return known_proof().xs

    def quality(self, question: Question, checkpoint: Checkpoint) -> tuple[int, int]:
        self._at(question.level)
        return 1, 2

    def _at(self, level: int) -> None:
        if level == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        if level == 3:
            raise DeviceMemoryError("It has not enough memory.")
        if level == 5:
            threading.Event().wait()


def limited() -> _Limited:
    return _Limited()


def lying() -> _Lying:
    return _Lying()


def crashing() -> _Crashing:
    return _Crashing()


def hanging() -> _Hanging:
    return _Hanging()


def compiling() -> _Lying:
    threading.Event().wait()
    return _Lying()


def unfit() -> _Lying:
    raise NotFoundError("The card is not there.")
