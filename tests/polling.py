"""Waiting for a condition with a deadline instead of sleeping for a guess."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE = 0.02


async def eventually(
    look: Callable[[], Awaitable[T | None] | T | None], seconds: float = 30.0, what: str = "it"
) -> T:
    """Return the first true value of ``look`` (plain or async); fail when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        value = await seen if isinstance(seen, Awaitable) else seen
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds:g} s; last seen: {value!r}")
        await asyncio.sleep(PAUSE)
