"""Who may ask what, decided on the request's head before a byte of its body is read.

Operator token: everything of ``/v1``. API token: what its role allows. Service token: the endpoints feed, read only.
Hotkey: the miner API, as far as its role allows; its signature is checked once the body is there. Join token, the
pool's own or a minted one: joining. The other paths of ``/v1/agent`` carry signatures, which cover the body and are
checked by their routes; joining again may, too. What else lies outside ``/v1`` is open to this machine; from
elsewhere it takes the operator token or an API token.
"""

import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from gpupool.control.authorising import check_role, is_miner_path
from gpupool.control.http.hotkey_signatures import SIGNED, claim_of
from gpupool.control.http.rates import AddressRates
from gpupool.control.pool import Pool
from gpupool.core.errors import ForbiddenError, UnauthorizedError
from gpupool.core.home import Home
from gpupool.core.keys import (
    HEADER_NODE,
    HEADER_NONCE,
    HEADER_SIGNATURE,
    HEADER_TIME,
)
from gpupool.core.tokens import load_or_make_token, same_secret
from gpupool.fleet.api_tokens import PREFIX, ApiToken

BY = "gpupool.by"
"""Key of the request's scope under which the caller is named, for the events of what it changes."""
MINTED = "gpupool.minted"
"""Key of the request's scope under which a minted join token lies that was good when the request came."""
MINER_RATE = 10.0
"""Requests a second that one address may send to the miner API."""
MINER_BURST = 60
_AGENT = "/v1/agent/"
_JOIN = "/v1/agent/join"
_FEED = "/v1/endpoints"
_SIGNATURE_HEADERS = {
    header.lower().encode() for header in (HEADER_NODE, HEADER_TIME, HEADER_NONCE, HEADER_SIGNATURE)
}


@dataclass(frozen=True, slots=True, repr=False)
class Tokens:
    """The bearer tokens of one pool."""

    operator: str
    service: str
    join: str

    @classmethod
    def load_or_make(cls, home: Home) -> "Tokens":
        """Read the tokens of a state folder; make those that are missing (mode 0600)."""
        return cls(
            operator=load_or_make_token(home.operator_token),
            service=load_or_make_token(home.service_token),
            join=load_or_make_token(home.join_token),
        )


class Guard:
    """ASGI layer that lets a request pass or raises UnauthorizedError or ForbiddenError."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        check_minted: Callable[[str], Awaitable[None]],
        authorise: Callable[[str, str, str], Awaitable[ApiToken]],
        pool: Pool,
    ) -> None:
        """``check_minted`` raises UnauthorizedError for a join token that is not, or no longer, good.

        ``authorise`` returns the API token that lets a request (token, method, path) through, or raises as this does.
        """
        self._app, self._tokens = app, tokens
        self._check_minted, self._authorise = check_minted, authorise
        self._pool = pool
        self._rates = AddressRates(pool.clock, per_second=MINER_RATE, burst=MINER_BURST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        if scope["type"] == "http":
            await self.check(scope)
        await self._app(scope, receive, send)

    async def check(self, scope: Scope) -> None:
        """Raise unless the request may go on to its route."""
        path: str = scope["path"]
        if path == _JOIN:
            await self._check_join(scope)
        elif path.startswith(_AGENT):
            check_signed(scope)
        elif is_miner_path(path):
            await self._check_miner(scope)
        elif path == "/v1" or path.startswith("/v1/") or not _from_this_machine(scope):
            await self._check_api(scope, bearer(scope))

    async def _check_join(self, scope: Scope) -> None:
        given = bearer(scope)
        if given is None and not _is_signed(scope):
            raise UnauthorizedError(
                "The request carries no join token.", remedy="Make one with `gpupool node add`."
            )
        if given is None:
            return
        if same_secret(given, self._tokens.join):
            scope[BY] = "keys/join.token"
        else:
            await self._check_minted(given)
            scope[MINTED] = given

    async def _check_miner(self, scope: Scope) -> None:
        self._rates.take(_address(scope))
        given = bearer(scope)
        if given is not None:
            await self._check_api(scope, given)
            return
        claim = await claim_of(self._pool, scope)
        check_role(f"hotkey {claim.hotkey.name}", claim.hotkey.role, scope["method"], scope["path"])
        scope[SIGNED] = claim
        scope[BY] = f"{claim.hotkey.name}@{_address(scope)}"

    async def _check_api(self, scope: Scope, given: str | None) -> None:
        if given is None:
            raise UnauthorizedError("The request carries no bearer token.")
        if same_secret(given, self._tokens.operator):
            scope[BY] = f"operator@{_address(scope)}"
            return
        if given.startswith(PREFIX):
            token = await self._authorise(given, scope["method"], scope["path"])
            scope[BY] = f"{token.name}@{_address(scope)}"
            return
        if not same_secret(given, self._tokens.service):
            raise UnauthorizedError("The bearer token is wrong.")
        if scope["method"] != "GET" or scope["path"] != _FEED:
            raise ForbiddenError(
                "The service token may read the endpoints feed and nothing else.",
                remedy="Use the operator token for this.",
            )


def check_signed(scope: Scope) -> None:
    """Raise UnauthorizedError where no signature came: the body, which a signature covers, need not be read then."""
    if not _is_signed(scope):
        raise UnauthorizedError(
            "The request is not signed.", remedy="Only an agent that has joined may use the agent link."
        )


def _is_signed(scope: Scope) -> bool:
    return {name for name, _ in scope["headers"]}.issuperset(_SIGNATURE_HEADERS)


def bearer(scope: Scope) -> str | None:
    """Return the bearer token of a request; None where there is none, or more than one credential."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    kind, _, token = values[0].decode("latin-1").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "?"


def _from_this_machine(scope: Scope) -> bool:
    client = scope.get("client")
    if client is None:
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False
