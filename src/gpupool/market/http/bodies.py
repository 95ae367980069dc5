"""Bodies, read against a limit and a time: nobody fills the memory or holds a place by sending slowly."""

import asyncio
from typing import Final

from starlette.requests import Request

from gpupool.market.refusing import RefusedError

MOST_BYTES: Final = 4 * 1024 * 1024
SECONDS: Final = 30.0


async def body_of(request: Request, most: int = MOST_BYTES) -> bytes:
    """Return the exact bytes of a body; RefusedError 413 beyond ``most``, 408 where it does not come in time."""
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise RefusedError(413, f"The body is larger than {most} bytes.")
    except TimeoutError as error:
        raise RefusedError(408, f"The body did not come within {SECONDS:g} s.") from error
    return bytes(body)
