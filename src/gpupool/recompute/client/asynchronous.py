"""The client for programs with an event loop of their own."""

import asyncio
import ssl
from types import TracebackType
from typing import Self

from gpupool.contracts.recompute import ProofRequest, QualityRequest
from gpupool.recompute.client.link import Link
from gpupool.recompute.client.local import NAME as LOCAL
from gpupool.recompute.client.local import LocalEngine
from gpupool.recompute.client.lookup import Lookup
from gpupool.recompute.client.options import ClientOptions
from gpupool.recompute.client.questions import Answer, Question, question_of
from gpupool.recompute.client.table import HostTable, HostView
from gpupool.recompute.client.verifying import Verifier


class AsyncClient:
    """Looks up proofs and qualities at any of its hosts; use it as an asynchronous context manager.

    Entering prepares the verifier (seconds at the very first time), so that no look-up pays for it. Any number of
    look-ups may run at once.
    """

    def __init__(
        self, options: ClientOptions, *, token: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.options = options
        self._token, self._tls = token, tls
        self._hosts = {host.name: host for host in options.hosts}
        self._table = HostTable(self._hosts, options.retry_interval_s)
        self._verifier = Verifier()
        self._local = LocalEngine() if options.local_fallback else None
        self._link: Link | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._verifier.prepare)
        self._link = Link(self.options.connect_timeout_s, token=self._token, tls=self._tls)
        if self._local is not None:
            self._local.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._link is not None:
            await self._link.close()
        if self._local is not None:
            await asyncio.to_thread(self._local.close)

    async def recover_proof(self, request: ProofRequest, *, timeout_s: float | None = None) -> Answer:
        """Return the 64 x of a proof, verified, within ``timeout_s`` (by default that of the options).

        Raises NoProofError or AmbiguousProofError where the hosts agree on it, InvalidInputError or UnsupportedError
        for a question that no host takes, and DeadlineError, which says what is wrong with each host, exactly when
        the time is over.
        """
        return await self.ask(question_of(request), timeout_s)

    async def look_up_quality(self, request: QualityRequest, *, timeout_s: float | None = None) -> Answer:
        """Return the pair of x of a quality, smaller first; otherwise as `recover_proof`."""
        return await self.ask(question_of(request), timeout_s)

    def hosts(self) -> tuple[HostView, ...]:
        """Return how every host stands right now."""
        return self._table.view(asyncio.get_running_loop().time())

    async def ask(self, question: Question, timeout_s: float | None = None) -> Answer:
        """Look up either kind; see `recover_proof`."""
        seconds = self.options.timeout_s if timeout_s is None else timeout_s
        local = self._local is not None
        return await Lookup(
            question, self._table, self._ask, self._verifier.check, seconds, local=local
        ).run()

    async def _ask(self, name: str, question: Question, request_id: str, seconds: float) -> tuple[int, ...]:
        if name == LOCAL and self._local is not None:
            return await self._local.ask(question)
        if self._link is None:
            raise RuntimeError("the client is used outside its context")
        return await self._link.ask(self._hosts[name], question, request_id, seconds)
