"""The engine on this machine's cores, and its self-test. Importing this module compiles nothing yet, but needs numba.

Threads that call share one decompressor, which keeps memory for each of them and lets idle threads help. A recovered
answer is truncated again and compared with the question, then judged by the verifier, which shares no join and no bit
packing with the decompressor.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpupool.core.errors import GpupoolError, InvalidInputError
from gpupool.pos.costs import Cost, Kind, cost
from gpupool.pos.decompressor import Decompressor
from gpupool.pos.errors import InvalidProofError
from gpupool.pos.parameters import LEVELS, PLOT_SIZES
from gpupool.pos.quality import proof_pair
from gpupool.pos.truncation import stands_on, truncate_twice
from gpupool.pos.verification import verify_proof, verify_tables
from gpupool.recompute.demo import known_proof, proof_request, quality_request
from gpupool.recompute.server.engine import Capability, Checkpoint, Engine, WrongAnswerError
from gpupool.recompute.server.questions import Question, read_proof_question, read_quality_question


class SelfTestError(GpupoolError):
    """The engine did not recover a proof that is known."""

    code = "self_test"
    default_remedy = "Remove the folder of compiled kernels (cache/numba in GPUPOOL_HOME) and start again."


class NumbaEngine:
    """Decompressor and verifier; a request is helped by idle ones of at most ``threads`` threads."""

    def __init__(self, threads: int = 1) -> None:
        self._local = threading.local()
        self._shared = Decompressor(threads)
        self._speeds: dict[tuple[Kind, int, int], float] = {}

    def proof(self, question: Question, checkpoint: Checkpoint) -> tuple[int, ...]:
        """Return the 64 x of a verified proof; see `Engine.proof`."""
        with self._timed("proof", question):
            xs = self._decompressor().recover_proof(
                question.plot_id,
                question.bits,
                question.line_points,
                question.challenge,
                checkpoint,
                question.k,
            )
        if not stands_on(xs, question.bits, question.line_points):
            raise WrongAnswerError
        try:
            if question.challenge is None:
                verify_tables(question.plot_id, question.k, xs)
            else:
                verify_proof(question.plot_id, question.k, xs, question.challenge)
        except InvalidProofError as error:
            raise WrongAnswerError from error
        return xs

    def quality(self, question: Question, checkpoint: Checkpoint) -> tuple[int, int]:
        """Return the verified pair of x; see `Engine.quality`."""
        if question.challenge is None:
            raise InvalidInputError("A quality look-up needs the challenge.")
        with self._timed("quality", question):
            found = self._decompressor().recover_quality(
                question.plot_id,
                question.bits,
                question.line_points,
                question.challenge,
                checkpoint,
                question.k,
            )
        if truncate_twice(found.chain, question.bits) != question.line_points[:1]:
            raise WrongAnswerError
        try:
            verify_tables(question.plot_id, question.k, found.chain)
        except InvalidProofError as error:
            raise WrongAnswerError from error
        return found.pair

    def new_decompressor(self) -> Decompressor:
        """Return what a thread that calls for the first time works with."""
        return self._shared

    def cost(self, kind: Kind, question: Question) -> Cost:
        """See `DescribedEngine.cost`."""
        return cost(kind, question.bits, question.k)

    def capability(self) -> Capability:
        """See `DescribedEngine.capability`."""
        return Capability(PLOT_SIZES, LEVELS, ("bladebit", "bits"), dict(self._speeds))

    @contextmanager
    def _timed(self, kind: Kind, question: Question) -> Iterator[None]:
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._speeds[kind, question.k, question.bits] = self.cost(kind, question).values / max(seconds, 1e-9)

    def _decompressor(self) -> Decompressor:
        decompressor: Decompressor | None = getattr(self._local, "decompressor", None)
        if decompressor is None:
            decompressor = self._local.decompressor = self.new_decompressor()
        return decompressor


def checked_engine(threads: str = "1") -> NumbaEngine:
    """Return an engine whose every path is compiled and has given a known answer; the first time takes seconds.

    ``threads``: how many may work at once, as text since it comes from a command line.
    """
    engine = NumbaEngine(int(threads))
    try_known_answers(engine)
    return engine


def try_known_answers(engine: Engine, level: int = 3) -> None:
    """Ask what is known: on a CPU a proof at C3 goes through the partitioned join, a quality at C1 through the other.

    Raises SelfTestError where an answer is not the known one, or what the engine raises.
    """
    proof = known_proof()
    question = read_proof_question(proof_request(proof, level).model_dump_json().encode())
    if engine.proof(question, _go_on) != proof.xs:
        raise SelfTestError
    question = read_quality_question(quality_request(proof, level=1).model_dump_json().encode())
    if engine.quality(question, _go_on) != proof_pair(proof.xs, proof.challenge):
        raise SelfTestError


def _go_on() -> None:
    """The self-test has no deadline."""
