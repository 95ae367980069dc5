"""Who asks: a miner by its hotkey's signature, the market's owner by the operator token, an instance by its launch token.

Source: chutes.md section 2.1 (a). An endpoint with a purpose is signed for that, one that takes a body is signed over it.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from gpupool.core.tokens import same_secret
from gpupool.market.refusing import RefusedError
from gpupool.validators.chutes.signing import HOTKEY, NONCE, NONCE_SECONDS, SIGNATURE, subject_of
from gpupool.validators.hotkeys import verified

_MOST_NONCE: Final = 20


class Identity:
    """Checks credentials of one market."""

    def __init__(self, owner_token: str, miners: Collection[str], now: Callable[[], float]) -> None:
        """``miners``: the hotkeys that may take part; none named: every hotkey may."""
        self._owner_token, self._miners, self._now = owner_token, frozenset(miners), now

    def miner(
        self, headers: Mapping[str, str], *, body: bytes | None = None, purpose: str | None = None
    ) -> str:
        """Return the hotkey that signed a request for ``purpose`` or over ``body``; RefusedError 401 where none did."""
        hotkey, nonce = headers.get(HOTKEY.lower(), ""), headers.get(NONCE.lower(), "")
        self._check_nonce(nonce)
        try:
            signature = bytes.fromhex(headers.get(SIGNATURE.lower(), ""))
        except ValueError:
            signature = b""
        message = f"{hotkey}:{nonce}:{subject_of(body, purpose)}".encode()
        if not verified(hotkey, message, signature):
            raise RefusedError(401, "Invalid request signature!")
        if self._miners and hotkey not in self._miners:
            raise RefusedError(401, "This hotkey takes no part in this market.")
        return hotkey

    def owner(self, headers: Mapping[str, str]) -> None:
        """Raise RefusedError 401 unless a request carries the operator token."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.casefold() != "bearer" or not same_secret(token, self._owner_token):
            raise RefusedError(401, "This needs the operator token.")

    def _check_nonce(self, nonce: str) -> None:
        if not (nonce.isascii() and nonce.isdigit() and len(nonce) <= _MOST_NONCE):
            raise RefusedError(401, "Invalid nonce!")
        if abs(self._now() - int(nonce)) >= NONCE_SECONDS:
            raise RefusedError(401, "Invalid nonce!")


def launch_token(headers: Mapping[str, str]) -> str:
    """Return the token that an instance sends: bare, or as the last word."""
    words = headers.get("authorization", "").split()
    if not words:
        raise RefusedError(401, "A launch token is needed.")
    return words[-1]
