"""The last resort, which the original programs lack: this machine's own processor.

One look-up at a time in one thread, so that a harvester keeps its cores. The engine is imported and compiled in that
thread when the client starts; a look-up that comes earlier waits for it.
"""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from gpupool.core.errors import DeadlineError, GpupoolError
from gpupool.recompute.client.questions import Question, question_of
from gpupool.recompute.client.trouble import Follows, HostTroubleError
from gpupool.recompute.demo import known_proof, proof_request, quality_request

if TYPE_CHECKING:
    from gpupool.pos.decompressor import Decompressor

NAME = "local"


class LocalEngine:
    """Recovers on this machine's processor."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="recompute-local")
        self._decompressor: Decompressor | None = None
        self._closing = threading.Event()

    def begin(self) -> None:
        """Compile in the background."""
        self._pool.submit(self._prepare)

    def close(self) -> None:
        """Stop at the next checkpoint."""
        self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def ask(self, question: Question) -> tuple[int, ...]:
        """Return what the engine finds, not verified; raises HostTroubleError. Cancelling stops the work soon."""
        abandoned = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, partial(self._recover, question, abandoned)
            )
        except GpupoolError as error:
            follows = Follows.DOUBT if error.status == 404 else Follows.ELSEWHERE
            raise HostTroubleError(follows, f"found nothing: {error.message}", error=error) from error
        finally:
            abandoned.set()

    def _prepare(self) -> None:
        # Between them, these go through every kernel.
        known = (quality_request(known_proof(), level=1), proof_request(known_proof(), level=3))
        with suppress(DeadlineError):
            for request in known:
                self._recover(question_of(request), self._closing)

    def _recover(self, question: Question, abandoned: threading.Event) -> tuple[int, ...]:
        if self._decompressor is None:
            from gpupool.pos.decompressor import Decompressor

            self._decompressor = Decompressor()

        def checkpoint() -> None:
            if abandoned.is_set() or self._closing.is_set():
                raise DeadlineError

        checkpoint()
        engine, plot = self._decompressor, (question.plot_id, question.bits, question.line_points)
        if question.kind == "proof":
            return tuple(engine.recover_proof(*plot, question.challenge, checkpoint, question.k))
        return tuple(engine.recover_quality(*plot, question.challenge or b"", checkpoint, question.k).pair)
