"""Signed requests of agents: fresh, new and by the key that joined.

A nonce is remembered for as long as its time stamp would still be taken. The memory is bounded per node: when it is
full, the oldest stamps are given up together with their time, so that a forgotten nonce can't come back.
"""

import heapq
from collections.abc import Mapping
from typing import Final

from gpupool.core.clock import Clock
from gpupool.core.errors import UnauthorizedError
from gpupool.core.keys import (
    HEADER_NONCE,
    HEADER_SIGNATURE,
    HEADER_TIME,
    MAX_SKEW_SECONDS,
    canonical_request,
    verify_signature,
)

NONCES_PER_NODE: Final = 4096
_MAX_NONCE: Final = 64
_HASH_BITS: Final = 64
_HASH_MASK: Final = (1 << _HASH_BITS) - 1
_NONCE, _TIME, _SIGNATURE = HEADER_NONCE.lower(), HEADER_TIME.lower(), HEADER_SIGNATURE.lower()
_REMEDY: Final = "Check that the agent was joined to this pool and that its key file is whole."


class ReplayGuard:
    """Remembers the nonces of one node."""

    def __init__(self, capacity: int = NONCES_PER_NODE) -> None:
        self._capacity = capacity
        self._floor = 0
        # One number each, the time above the nonce's hash, since there are some hundred thousand of them.
        self._by_time: list[int] = []
        self._known: set[int] = set()

    def admit(self, stamp: int, nonce: str, now: int) -> None:
        """Take a nonce; raise UnauthorizedError when it was taken before. Times are Unix seconds.

        What has expired is simply forgotten: its time alone keeps it out. It raises no floor, since after the clock
        was set back honest requests carry earlier times than forgotten ones.
        """
        oldest_taken = now - MAX_SKEW_SECONDS
        while self._by_time and self._by_time[0] >> _HASH_BITS < oldest_taken:
            self._known.discard(heapq.heappop(self._by_time))
        while len(self._by_time) >= self._capacity:
            forgotten = heapq.heappop(self._by_time)
            self._floor = forgotten >> _HASH_BITS
            self._known.discard(forgotten)
        # A floor from before the clock was set far back would keep everyone out until then.
        floor = self._floor if self._floor <= now + MAX_SKEW_SECONDS else 0
        # A signature covers both, so the same nonce at another time is another request.
        entry = stamp << _HASH_BITS | hash(nonce) & _HASH_MASK
        if entry in self._known or stamp <= max(floor, oldest_taken - 1):
            raise UnauthorizedError("The request was sent before (its nonce is not new).", remedy=_REMEDY)
        self._known.add(entry)
        heapq.heappush(self._by_time, entry)


class SignatureCheck:
    """Checks signed requests of all nodes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guards: dict[str, ReplayGuard] = {}

    def check(
        self, node_id: str, public_key: str, method: str, target: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[str, int]:
        """Return nonce and time of a request.

        Raises UnauthorizedError unless it is signed by this key, now, and for the first time at this control.
        """
        nonce, time_text = headers.get(_NONCE, ""), headers.get(_TIME, "")
        if not (0 < len(nonce) <= _MAX_NONCE and time_text.isdecimal() and len(time_text) <= 12):
            raise UnauthorizedError(
                "The request is not signed: a nonce and a time are needed.", remedy=_REMEDY
            )
        now, stamp = int(self._clock.now().timestamp()), int(time_text)
        if abs(now - stamp) > MAX_SKEW_SECONDS:
            raise UnauthorizedError(
                f"Clock skew: the request says Unix time {stamp}, control's clock says {now}; at most "
                f"{MAX_SKEW_SECONDS} s apart are taken.",
                remedy="Set the clocks of both machines (NTP), then let the agent connect again.",
            )
        message = canonical_request(method, target, body, time_text, nonce)
        verify_signature(public_key, headers.get(_SIGNATURE, ""), message)
        self._guards.setdefault(node_id, ReplayGuard()).admit(stamp, nonce, now)
        return nonce, stamp
