"""The bus on Redis: one stream that every control reads through a consumer group of its own.

A group keeps what its reader had not acknowledged when it was cut off, so a short break costs nothing. A Redis that is
flushed loses the groups too; the reader makes its own again and reads on in the store. The stream is cut to a length,
since nothing in it is the only copy.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from gpupool.bus.wire import decode, encode
from gpupool.core.errors import InvalidInputError, UnavailableError
from gpupool.fleet.ports.bus import News

STREAM: Final = "gpupool:news"
MOST_KEPT: Final = 10_000
"""News that the stream holds, about."""
_FIELD: Final = "news"
_BATCH: Final = 100
_BLOCK_MS: Final = 5000
_ANSWER_SECONDS: Final = 3.0
_GONE_MS: Final = 3_600_000
"""A group whose reader was not heard for so long is removed."""
_UNREAD: Final = ">"


class RedisBus:
    """`fleet.ports.bus.Bus` on a Redis or Valkey server; InvalidInputError for a URL that is none."""

    def __init__(self, url: str) -> None:
        try:
            # One connection blocks on the stream, the other one publishes.
            self._reading = _client(url, _BLOCK_MS / 1000 + _ANSWER_SECONDS)
            self._writing = _client(url, _ANSWER_SECONDS)
        except ValueError as error:
            # Its words may hold the password.
            raise InvalidInputError(
                "GPUPOOL_REDIS_URL is not the URL of a Redis server.",
                remedy="Give it as redis://:PASSWORD@HOST:6379/0, or rediss:// for TLS.",
            ) from error

    async def publish(self, news: News) -> None:
        """Send news to every subscriber; UnavailableError where Redis cannot be reached, or takes nothing."""
        try:
            await self._writing.xadd(STREAM, {_FIELD: encode(news)}, maxlen=MOST_KEPT, approximate=True)
        except (RedisError, OSError) as error:
            raise _lost(error) from error

    @asynccontextmanager
    async def subscribe(self, reader: str) -> AsyncIterator[AsyncIterator[News]]:
        """Return the news from now on, and what ``reader`` had not taken when it was cut off."""
        try:
            await self._make_group(reader)
            await self._remove_gone(reader)
        except (RedisError, OSError) as error:
            raise _lost(error) from error
        yield self._all(reader)

    async def _make_group(self, reader: str) -> None:
        try:
            await self._writing.xgroup_create(STREAM, reader, id="$", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _remove_gone(self, reader: str) -> None:
        for group in await self._writing.xinfo_groups(STREAM):
            name = group["name"].decode()
            consumers = await self._writing.xinfo_consumers(STREAM, name)
            if name != reader and consumers and all(one["idle"] > _GONE_MS for one in consumers):
                await self._writing.xgroup_destroy(STREAM, name)

    async def _all(self, reader: str) -> AsyncIterator[News]:
        since: str = "0"
        while True:
            try:
                # Redis may wait for news or for nothing, but not for what was handed out before.
                block = _BLOCK_MS if since == _UNREAD else None
                found: Any = await self._reading.xreadgroup(
                    reader, reader, {STREAM: since}, count=_BATCH, block=block
                )
            except (RedisError, OSError) as error:
                raise _lost(error) from error
            entries = found[0][1] if found else []
            if not entries:
                since = _UNREAD
            for entry, fields in entries:
                if fields:
                    yield decode(fields[_FIELD.encode()])
                await self._taken(reader, entry)

    async def _taken(self, reader: str, entry: bytes) -> None:
        try:
            await self._writing.xack(STREAM, reader, entry)
        except (RedisError, OSError) as error:
            raise _lost(error) from error

    async def close(self) -> None:
        """Give back every connection."""
        for client in (self._reading, self._writing):
            await client.aclose()


def _client(url: str, seconds: float) -> "Redis":
    return Redis.from_url(url, socket_timeout=seconds, socket_connect_timeout=_ANSWER_SECONDS)


def _lost(error: Exception) -> UnavailableError:
    told = str(error).partition("\n")[0] or type(error).__name__
    return UnavailableError(f"Redis cannot carry news: {told}.")
