"""One look-up on its way through the hosts, until the first verified answer or the deadline.

It goes to the host that will probably finish first. Where that one fails, the next is asked at once; where it stays
silent for too long, the next is asked as well, and the first good answer of any of them wins. Where no host is good,
the one whose failure is longest ago is tried, again and again until the deadline: it may come back in time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from gpupool.core.errors import DeadlineError, GpupoolError
from gpupool.pos.errors import InvalidProofError
from gpupool.recompute.client.local import NAME as LOCAL
from gpupool.recompute.client.questions import Answer, Question
from gpupool.recompute.client.table import FIRST_PAUSE_S, LONGEST_PAUSE_S, HostTable
from gpupool.recompute.client.trouble import Follows, HostTroubleError

MOST_AT_ONCE: Final = 4
"""Hosts asked the same question at one time."""
_TOLD_TROUBLES: Final = 4
log = logging.getLogger(__name__)
"""The standard library's: this runs inside programs of others, whose output it must not disturb."""

Ask = Callable[[str, Question, str, float], Awaitable[tuple[int, ...]]]
"""Asks the host of a name; with the request id of the attempt and the seconds left."""
Check = Callable[[Question, tuple[int, ...]], None]


@dataclass(slots=True)
class _Attempt:
    host: str
    began: float
    overdue_at: float
    """From when on another host is asked as well."""


class Lookup:
    """Sends one question; `run` is called once."""

    def __init__(
        self, question: Question, table: HostTable, ask: Ask, check: Check, timeout_s: float, *, local: bool
    ) -> None:
        self._question, self._table, self._ask, self._check = question, table, ask, check
        self._timeout_s, self._local = timeout_s, local
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._deadline = self._began + timeout_s
        self._running: dict[asyncio.Task[tuple[int, ...]], _Attempt] = {}
        self._dropped: list[asyncio.Task[tuple[int, ...]]] = []
        self._tried: set[str] = set()
        self._unfit: set[str] = set()
        self._doubts: dict[str, GpupoolError] = {}
        self._refusal: GpupoolError | None = None
        self._troubles: dict[str, str] = {}
        self._sent = 0
        self._retry_at = self._began
        self._pause_s = FIRST_PAUSE_S

    async def run(self) -> Answer:
        """Return the first verified answer.

        Raises what the hosts say of the question itself where they agree, DeadlineError once the time is over.
        """
        try:
            while self._loop.time() < self._deadline:
                self._start_where_due()
                self._raise_where_decided()
                done = await self._wait()
                for task in done:
                    answer = self._settle(task)
                    if answer is not None:
                        return answer
            self._give_up()
        finally:
            await self._cancel_the_rest()

    def _start_where_due(self) -> None:
        while True:
            now = self._loop.time()
            if any(attempt.overdue_at > now for attempt in self._running.values()):
                return
            host = self._next_host(now)
            if host is None:
                return
            if len(self._running) >= MOST_AT_ONCE:
                if host in self._tried:
                    return
                self._drop_the_oldest(now)
            self._start(host, now)

    def _drop_the_oldest(self, now: float) -> None:
        """Wait no longer for the attempt that is silent for the longest time, so that an untried host gets its turn."""
        task, attempt = next(iter(self._running.items()))
        del self._running[task]
        task.cancel()
        self._dropped.append(task)
        self._troubles[attempt.host] = f"stayed silent for {now - attempt.began:.1f} s"
        if attempt.host != LOCAL:
            self._table.ended(attempt.host)
            self._table.silent(attempt.host, attempt.began, now, self._troubles[attempt.host])

    def _closed(self) -> set[str]:
        """Hosts that cannot be asked: they are at work on this, or cannot take it."""
        return {attempt.host for attempt in self._running.values()} | self._unfit

    def _next_host(self, now: float) -> str | None:
        closed = self._closed()
        fresh = self._table.pick(now, self._question.speed_class, closed | self._tried)
        if fresh is not None:
            return fresh
        if self._local and LOCAL not in closed | self._tried:
            return LOCAL
        if self._doubts:
            return None
        resting = self._table.pick_failed(now, closed | self._tried)
        if resting is not None:
            return resting
        if now < self._retry_at:
            return None
        again = self._table.pick_failed(now, closed)
        if again is not None:
            self._retry_at = now + self._pause_s
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
        return again

    def _start(self, host: str, now: float) -> None:
        self._sent += 1
        self._tried.add(host)
        limit = self._timeout_s
        if host != LOCAL:
            self._table.started(host)
            limit = self._table.silence_limit(host, self._question.speed_class, self._timeout_s)
        request_id = f"{self._question.request_id}-{self._sent}"
        asking = self._ask(host, self._question, request_id, self._deadline - now)
        task = asyncio.ensure_future(asking)
        self._running[task] = _Attempt(host, now, now + limit)

    async def _wait(self) -> set[asyncio.Task[tuple[int, ...]]]:
        """Wait until an attempt ends or there may be something to start."""
        now = self._loop.time()
        moments = [a.overdue_at for a in self._running.values() if a.overdue_at > now]
        if not moments and len(self._running) < MOST_AT_ONCE and not self._doubts:
            moments = [moment for moment in self._next_tries() if moment > now]
        until = max(0.0, min([self._deadline, *moments]) - now)
        if not self._running:
            await asyncio.sleep(until)
            return set()
        done, _ = await asyncio.wait(self._running, timeout=until, return_when=asyncio.FIRST_COMPLETED)
        return done

    def _next_tries(self) -> list[float]:
        """Return the moments at which a host that failed may be tried: one not tried for this yet, or again."""
        closed = self._closed()
        untried, again = self._table.next_try(closed | self._tried), self._table.next_try(closed)
        moments = [] if untried is None else [untried]
        return moments if again is None else [*moments, max(again, self._retry_at)]

    def _settle(self, task: asyncio.Task[tuple[int, ...]]) -> Answer | None:
        """Take in how an attempt ended; return the answer where it is good."""
        attempt = self._running.pop(task)
        now = self._loop.time()
        try:
            numbers = task.result()
            self._check(self._question, numbers)
            if attempt.host != LOCAL:
                self._table.answered(attempt.host, now, self._question.speed_class, now - attempt.began)
        except HostTroubleError as trouble:
            self._note(attempt.host, trouble, now)
            return None
        except InvalidProofError as error:
            reason = f"answered wrong: {error.message}"
            self._note(attempt.host, HostTroubleError(Follows.QUARANTINE, reason), now)
            return None
        finally:
            if attempt.host != LOCAL:
                self._table.ended(attempt.host)
        self._judge_the_others(now)
        troubles = tuple(f"{host} {reason}" for host, reason in self._troubles.items())
        return Answer(numbers, attempt.host, now - self._began, self._question.request_id, troubles)

    def _note(self, host: str, trouble: HostTroubleError, now: float) -> None:
        self._troubles[host] = trouble.reason
        follows = trouble.follows
        if follows in {Follows.ELSEWHERE, Follows.DOUBT}:
            self._unfit.add(host)
        if follows is Follows.DOUBT and trouble.error is not None:
            self._doubts[host] = trouble.error
        elif follows in {Follows.ELSEWHERE, Follows.RAISE}:
            self._refusal = trouble.error
        if follows is Follows.RAISE and trouble.error is not None:
            raise trouble.error
        if host == LOCAL:
            return
        if follows is Follows.QUARANTINE:
            self._quarantine(host, trouble.reason, now)
        elif follows in {Follows.REST, Follows.PAUSE}:
            rest = None if follows is Follows.REST else trouble.pause_s
            if self._table.failed(host, now, trouble.reason, rest):
                log.warning(
                    "Recompute host %s %s (request %s).", host, trouble.reason, self._question.request_id
                )

    def _quarantine(self, host: str, reason: str, now: float) -> None:
        if self._table.quarantine(host, now, reason):
            log.error(
                "Recompute host %s is in quarantine, because it %s (request %s). Take it out of use: its memory, its "
                "card or its program may be damaged.",
                host,
                reason,
                self._question.request_id,
            )

    def _judge_the_others(self, now: float) -> None:
        """An answer is here: who stayed silent all along rests, who denied that there is one was wrong."""
        for attempt in self._running.values():
            if attempt.host != LOCAL and attempt.overdue_at <= now:
                reason = f"stayed silent for {now - attempt.began:.1f} s"
                if self._table.silent(attempt.host, attempt.began, now, reason):
                    self._troubles[attempt.host] = reason
                    log.warning("Recompute host %s %s.", attempt.host, reason)
        for host, error in self._doubts.items():
            if error.code == "no_proof" and host != LOCAL:
                self._quarantine(host, "found no proof where there is one", now)

    def _raise_where_decided(self) -> None:
        """Raise what the hosts said of the question, once nobody is left who might say something else."""
        if self._running:
            return
        if self._doubts:
            raise next(iter(self._doubts.values()))
        if self._refusal is not None and self._unfit >= self._table.names:
            raise self._refusal

    def _give_up(self) -> NoReturn:
        now = self._loop.time()
        for attempt in self._running.values():
            reason, overdue = f"stayed silent for {now - attempt.began:.1f} s", attempt.overdue_at <= now
            if overdue or attempt.host not in self._troubles:
                self._troubles[attempt.host] = reason
            if overdue and attempt.host != LOCAL:
                self._table.silent(attempt.host, attempt.began, now, reason)
        known = {view.name: view.reason for view in self._table.view(now) if view.reason is not None}
        rested = dict.fromkeys(self._table.names - self._tried, "had failed, and was good again too late")
        told = [f"{host} {reason}" for host, reason in (rested | known | self._troubles).items()]
        more = f"; and {len(told) - _TOLD_TROUBLES} more" if len(told) > _TOLD_TROUBLES else ""
        raise DeadlineError(
            f"No recompute host gave the {self._question.kind} within {self._timeout_s:g} s: "
            f"{'; '.join(told[:_TOLD_TROUBLES])}{more}.",
            remedy="Run `gpupool recompute doctor` on this machine; it says which host is at fault and why.",
        )

    async def _cancel_the_rest(self) -> None:
        for task, attempt in self._running.items():
            task.cancel()
            if attempt.host != LOCAL:
                self._table.ended(attempt.host)
        await asyncio.gather(*self._running, *self._dropped, return_exceptions=True)
