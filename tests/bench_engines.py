"""Engines that are wrong in one way each, for worker processes of tests."""

import os
import signal
import threading

from gpupool.core.errors import NotFoundError
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
