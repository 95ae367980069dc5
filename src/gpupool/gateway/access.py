"""Who may ask: nobody else can reach a loopback address, so a key is needed only where others can."""

import ipaddress
from typing import Final

from aiohttp import hdrs
from multidict import CIMultiDictProxy

from gpupool.core.errors import InvalidInputError
from gpupool.core.tokens import same_secret
from gpupool.gateway.faults import GatewayError

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a listener on ``host``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def key_is_required(host: str, asked: bool | None) -> bool:
    """Return whether clients need the API key; raise InvalidInputError for a public address without one."""
    if asked is False and not is_loopback(host):
        raise InvalidInputError(
            f"The gateway does not listen on {host} without an API key: everybody there could use the pool's GPUs.",
            remedy="Leave require_key out, or listen on 127.0.0.1.",
        )
    return not is_loopback(host) if asked is None else asked


class KeyCheck:
    """Compares bearer keys in constant time; without an expected key it lets everybody in."""

    def __init__(self, expected: str | None) -> None:
        self._expected = expected

    def admit(self, headers: CIMultiDictProxy[str]) -> None:
        """Raise GatewayError (401) unless the request carries the key."""
        if self._expected is None:
            return
        scheme, _, given = headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        # Header bytes that are no UTF-8 arrive as lone surrogates, which no comparison takes; a key is ASCII.
        if scheme.lower() == "bearer" and given.isascii() and same_secret(given.strip(), self._expected):
            return
        message = "No API key was given." if not given else "The API key is not valid."
        raise GatewayError(
            401,
            "invalid_api_key",
            f"{message} Send the gateway's key as a bearer token; the operator finds it in the file "
            "keys/gateway.token of the pool's state folder.",
            headers={hdrs.WWW_AUTHENTICATE: "Bearer"},
        )
