"""Asks a model's server and names what went wrong there; the HTTP library's errors end here."""

import io
from typing import Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from gpupool.gateway.faults import GatewayError
from gpupool.gateway.routing import Upstream

CONNECT_SECONDS: Final = 3.0
# Common servers close an idle connection after 5 s; leaving earlier avoids asking into one that is just closing.
IDLE_SECONDS: Final = 2.0
_ONE_WRITE_BYTES: Final = 256 * 1024


class UnreachableError(Exception):
    """No byte of an answer came, and none will: another server may be asked."""

    def __init__(self, upstream: Upstream, reason: str, *, hung_up: bool) -> None:
        super().__init__(reason)
        self.upstream = upstream
        self.hung_up = hung_up
        """The connection stood and was closed, as happens to a kept one that its server no longer wants."""

    def fault(self, model: str) -> GatewayError:
        """Return what the client is told when nobody else can be asked."""
        message = (
            f"The server of {model!r} cannot be reached ({self}). The pool is told; try again in a moment."
        )
        return GatewayError(502, "upstream_unreachable", message, headers={"Retry-After": "2"})


def new_session(silence_seconds: float, *, keep_connections: bool) -> aiohttp.ClientSession:
    """Return a session towards all upstreams; one that says nothing for ``silence_seconds`` is given up."""
    connector = (
        aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ttl_dns_cache=10)
        if keep_connections
        else aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=10)
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=["User-Agent"],
    )


async def ask(
    session: aiohttp.ClientSession, upstream: Upstream, target: str, headers: CIMultiDict[str], body: bytes
) -> aiohttp.ClientResponse:
    """POST ``body`` to ``target`` (path and query) and return the answer once its head is here.

    Raises UnreachableError where another server may be asked, GatewayError where the request has failed.
    """
    try:
        url = URL(upstream.base_url + target, encoded=True)
        # Small bodies go out in one write with the head, large ones in pieces that leave the event loop air.
        data = body if len(body) <= _ONE_WRITE_BYTES else io.BytesIO(body)
        return await session.post(url, data=data, headers=headers, allow_redirects=False)
    except ValueError as error:
        raise UnreachableError(upstream, "its address is not valid", hung_up=False) from error
    except aiohttp.ConnectionTimeoutError as error:
        reason = f"no connection within {CONNECT_SECONDS:g} s"
        raise UnreachableError(upstream, reason, hung_up=False) from error
    except aiohttp.ClientConnectorError as error:
        reason = error.os_error.strerror or "no connection"
        raise UnreachableError(upstream, reason.lower(), hung_up=False) from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
        raise UnreachableError(upstream, "it closed the connection", hung_up=True) from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise fault_of(error) from error


def fault_of(error: aiohttp.ClientError | TimeoutError) -> GatewayError:
    """Translate what broke an exchange that had begun."""
    if isinstance(error, TimeoutError):
        return GatewayError(
            504,
            "upstream_timeout",
            "The model's server has been silent for too long and was given up. Ask for less, or try again later.",
        )
    return GatewayError(
        502,
        "upstream_failed",
        "The model's server broke off its answer. Its instance may have ended; try again.",
    )


async def read_whole(reply: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return an answer's body of at most ``limit`` bytes; raise GatewayError where it breaks off or is larger."""
    body = bytearray()
    try:
        async for chunk in reply.content.iter_any():
            body += chunk
            if len(body) > limit:
                message = f"The model's server sent more than {limit} bytes; ask for less at once."
                raise GatewayError(502, "upstream_reply_too_large", message)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise fault_of(error) from error
    return bytes(body)
