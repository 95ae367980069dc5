"""The client for programs without an event loop: the asynchronous one, run in a thread of its own.

Only so are deadlines exact for callers that block, whatever the other side does: resolve slowly, drip, or hang.
"""

import asyncio
import ssl
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from gpupool.contracts.recompute import ProofRequest, QualityRequest
from gpupool.recompute.client.asynchronous import AsyncClient
from gpupool.recompute.client.options import ClientOptions
from gpupool.recompute.client.questions import Answer, Question
from gpupool.recompute.client.table import HostView

T = TypeVar("T")


class Client:
    """Looks up proofs and qualities at any of its hosts; use it as a context manager, from any number of threads."""

    def __init__(
        self, options: ClientOptions, *, token: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._client = AsyncClient(options, token=token, tls=tls)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recompute-client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._client.__aexit__(kind, error, trace))
        finally:
            self._stop()

    def recover_proof(self, request: ProofRequest, *, timeout_s: float | None = None) -> Answer:
        """Return the 64 x of a proof, verified; see `AsyncClient.recover_proof`."""
        return self._run(self._client.recover_proof(request, timeout_s=timeout_s))

    def look_up_quality(self, request: QualityRequest, *, timeout_s: float | None = None) -> Answer:
        """Return the pair of x of a quality, smaller first; see `AsyncClient.look_up_quality`."""
        return self._run(self._client.look_up_quality(request, timeout_s=timeout_s))

    def ask(self, question: Question, timeout_s: float | None = None) -> Answer:
        """Look up either kind; see `AsyncClient.recover_proof`."""
        return self._run(self._client.ask(question, timeout_s))

    def hosts(self) -> tuple[HostView, ...]:
        """Return how every host stands right now."""
        return self._run(self._hosts())

    async def _hosts(self) -> tuple[HostView, ...]:
        return self._client.hosts()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C ends the waiting, so the work must end too.
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
