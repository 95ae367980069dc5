"""Which answers are checked, and the process that does it, started when the first one is due.

While it keeps up, every answer is checked. Beyond a tenth of a processor it is a sample, except for nodes that are not
trusted yet (new ones, and those that answered wrong a short while ago), each of whose answers waits for its verdict.
A checker that dies or hangs costs nobody an answer: what it had goes on unchecked, and it is started anew.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

import structlog

from gpupool.recompute.proxy.judging import PROOF, QUALITY, TASK, UNKNOWN, VERDICT

TRUST_AFTER: Final = 20
"""Right answers in a row after which a node's answers may be sampled."""
SHARE: Final = 0.1
"""Of one processor, for answers of trusted nodes."""
SECONDS_OF: Final = {PROOF: 0.002, QUALITY: 0.0001}
"""What a check costs, measured on an AMD EPYC 7502; see docs/design/proxy.md."""
LONGEST_SECONDS: Final = 1.0
"""A verdict that takes longer is not waited for."""
MOST_WAITING: Final = 2000
_BURST_SECONDS: Final = 0.5
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
KINDS: Final = {b"/v1/proofs": PROOF, b"/v1/qualities": QUALITY}
log = structlog.get_logger(__name__)
Told = Callable[[int, str], None]
"""Hears the verdict and, where it is wrong, the reason."""


@dataclass(slots=True)
class _Waiting:
    since: float
    told: Told


class Judge:
    """Hands answers to the checker and brings its verdicts back."""

    def __init__(self, clock: Callable[[], float], *, enabled: bool = True) -> None:
        self._clock = clock
        self._enabled = enabled
        self._left = _BURST_SECONDS
        self._counted = clock()
        self._checker: _Checker | None = None
        self._starting: asyncio.Task[None] | None = None
        self._queued: list[bytes] = []
        self._waiting: deque[_Waiting] = deque()
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0
        self.verdicts = {"right": 0, "wrong": 0, "unknown": 0}
        self.unchecked = 0

    def wants(self, path: bytes, *, trusted: bool) -> bool:
        """Tell whether an answer to ``path`` is to be checked; counts it against the share where it is."""
        if not self._enabled or len(self._waiting) >= MOST_WAITING:
            return False
        now = self._clock()
        self._left = min(_BURST_SECONDS, self._left + (now - self._counted) * SHARE)
        self._counted = now
        cost = SECONDS_OF[KINDS[path]]
        if trusted and self._left < cost:
            self.unchecked += 1
            return False
        self._left = max(0.0, self._left - cost)
        return True

    def ask(self, path: bytes, question: bytes, answer: bytes, told: Told) -> None:
        """Have an answer checked; ``told`` hears the verdict, maybe at once where there is no checker."""
        now = self._clock()
        task = TASK.pack(KINDS[path], len(question), len(answer)) + question + answer
        if self._checker is not None:
            self._waiting.append(_Waiting(now, told))
            self._checker.send(task)
        elif now < self._not_before:
            told(UNKNOWN, "")
        else:
            self._waiting.append(_Waiting(now, told))
            self._queued.append(task)
            if self._starting is None:
                self._starting = asyncio.get_running_loop().create_task(self._start())

    @property
    def running(self) -> bool:
        """Whether there is a checker."""
        return self._checker is not None

    def sweep(self, now: float) -> None:
        """End a checker that hangs."""
        if self._waiting and now - self._waiting[0].since > LONGEST_SECONDS:
            self.kill()

    def kill(self) -> None:
        """End the checker at once; what it had goes on unchecked."""
        if self._checker is not None:
            self._checker.kill()

    async def close(self) -> None:
        """End the checker, and return once it is gone."""
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._checker is not None:
            await self._checker.end()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        command = (sys.executable, "-m", "gpupool.recompute.proxy.judging")
        try:
            _, checker = await loop.subprocess_exec(
                lambda: _Checker(self._verdict, self._gone), *command, stderr=None
            )
        except OSError as error:
            self._gone(f"it cannot be started: {error.strerror or error}")
            return
        finally:
            self._starting = None
        self._checker = checker
        queued, self._queued = self._queued, []
        for task in queued:
            checker.send(task)

    def _verdict(self, worth: int, reason: str) -> None:
        self._pause = _FIRST_PAUSE
        self.verdicts[("right", "wrong", "unknown")[worth]] += 1
        self._waiting.popleft().told(worth, reason)

    def _gone(self, why: str) -> None:
        self._checker = None
        self._queued.clear()
        self._not_before = self._clock() + self._pause
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)
        log.warning("answers_unchecked", why=why, seconds=self._not_before - self._clock())
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.told(UNKNOWN, "")


class _Checker(asyncio.SubprocessProtocol):
    """The running process."""

    def __init__(self, verdict: Told, gone: Callable[[str], None]) -> None:
        self._verdict, self._gone = verdict, gone
        self._buffer = b""
        self._ended = False
        self._exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the pipes."""
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._input = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))

    def send(self, task: bytes) -> None:
        """Pass a task on."""
        if not self._input.is_closing():
            self._input.write(task)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take verdicts."""
        buffer, at = self._buffer + data, 0
        while len(buffer) - at >= VERDICT.size:
            worth, size = VERDICT.unpack_from(buffer, at)
            end = at + VERDICT.size + size
            if len(buffer) < end:
                break
            reason = buffer[at + VERDICT.size : end].decode("utf-8", "replace")
            at = end
            self._verdict(worth, reason)
        self._buffer = buffer[at:]

    def process_exited(self) -> None:
        """Tell, unless it was asked to end."""
        self._exited.set()
        self._transport.close()
        if not self._ended:
            self._ended = True
            self._gone("the checker ended")

    def kill(self) -> None:
        """End it at once."""
        self._transport.kill()

    async def end(self) -> None:
        """End it without telling; it holds nothing that anybody misses."""
        self._ended = True
        self._transport.close()
        await self._exited.wait()
