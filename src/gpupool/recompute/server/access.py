"""The guard at a recompute server's door: bearer tokens and client certificates, both off unless given.

Health and readiness stay open, since whoever watches the process holds no secret of its clients.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from gpupool.core.errors import UnauthorizedError
from gpupool.recompute.credentials import TokenFault, token_fault

log = structlog.get_logger(__name__)
_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Tokens = Callable[[], tuple[str, ...]]
"""Returns the bearer tokens that count now: the file that holds them may be renewed while the server runs."""
CHALLENGE: Final = web.RequestKey("challenge", str)
"""What a refused request's answer says in ``WWW-Authenticate``."""
_REMEDIES: Final = {
    TokenFault.MISSING: "Send one from the server's token file as Authorization: Bearer TOKEN (--token-file).",
    TokenFault.UNKNOWN: "Copy a line of the server's token file into the client's (--token-file); it may have been "
    "renewed.",
}


def access_guard(tokens: Tokens | None, *, certificate: bool) -> Middleware:
    """Return a middleware that raises UnauthorizedError for requests that may not come in.

    With ``tokens`` each must bring one of them, with ``certificate`` each must come over a connection whose client
    has shown one; that it is of the right authority was found when it was shown.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        fault = None if request.path in _OPEN_PATHS else _fault(request, tokens, certificate=certificate)
        if fault is not None:
            log.warning(
                "unauthorized_client_refused",
                client=request.remote,
                path=request.path[:200],
                reason=fault.message,
            )
            raise fault
        return await handler(request)

    return guard


def _fault(request: web.Request, tokens: Tokens | None, *, certificate: bool) -> UnauthorizedError | None:
    if certificate and not request.get_extra_info("peercert"):
        return UnauthorizedError(
            "This server wants a client certificate, and the client has shown none.",
            remedy="Give the client one of the server's --client-ca, with its key (--tls-cert and --tls-key).",
        )
    if tokens is None:
        return None
    fault = token_fault(request.headers.get("Authorization", ""), tokens())
    if fault is None:
        return None
    request[CHALLENGE] = fault.challenge
    return UnauthorizedError(f"This server wants a bearer token, and {fault}.", remedy=_REMEDIES[fault])
