"""Waiting for a condition with a deadline instead of sleeping for a guess."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, overload

T = TypeVar("T")
PAUSE = 0.02


@overload
async def eventually(
    look: Callable[[], Coroutine[Any, Any, T | None]], seconds: float = ..., what: str = ...
) -> T: ...
@overload
async def eventually(look: Callable[[], T | None], seconds: float = ..., what: str = ...) -> T: ...
async def eventually(look: Callable[[], Any], seconds: float = 60.0, what: str = "it") -> Any:
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
