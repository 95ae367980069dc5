"""Requests to the miner API, signed by a hotkey as `chutes-miner-cli` does: the head checked first, the rest with the body.

The head tells who claims to ask, and when; whatever is wrong with that is said before a byte of the body is read.
"""

import re
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpupool.control.hotkeys import check_signature, known_hotkey
from gpupool.control.pool import Pool
from gpupool.core.errors import ClockSkewError, InvalidInputError, UnauthorizedError
from gpupool.fleet.hotkeys import OperatorHotkey
from gpupool.validators.chutes.management import (
    MANAGEMENT,
    MINER,
    NONCE_SECONDS,
    VALIDATOR,
    management_message,
)
from gpupool.validators.chutes.signing import NONCE, SIGNATURE

SIGNED: Final = "gpupool.signed"
"""Key of the request's scope under which the claim of a hotkey lies whose signature is still to be checked."""
_ADDRESS_FORM: Final = re.compile(r"[1-9A-HJ-NP-Za-km-z]{46,49}")
_NONCE_FORM: Final = re.compile(r"[0-9]{1,12}")
_SIGNATURE_FORM: Final = re.compile(r"(0x)?[0-9a-fA-F]{128}")
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


@dataclass(frozen=True, slots=True)
class Claim:
    """Who says that he asks, when he said so, and the signature that is to show it."""

    hotkey: OperatorHotkey
    nonce: str
    signature: bytes


async def claim_of(pool: Pool, scope: Scope) -> Claim:
    """Return what the head of a signed request claims.

    Raises UnauthorizedError where it is not signed, by a hotkey that is not known, or ClockSkewError, by a clock that
    is too far off.
    """
    given = {name: _header(scope, name) for name in (MINER, VALIDATOR, NONCE, SIGNATURE)}
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise UnauthorizedError(
            f"The request is not signed: {', '.join(missing)} missing, or given twice.",
            remedy="Sign it with a hotkey as chutes-miner-cli does, or send a bearer token.",
        )
    address, validator, nonce, signature = (value or "" for value in given.values())
    if address != validator:
        raise UnauthorizedError(
            f"{MINER} and {VALIDATOR} name different hotkeys.", remedy="Both name the one that signs."
        )
    forms = (
        (MINER, _ADDRESS_FORM, address),
        (NONCE, _NONCE_FORM, nonce),
        (SIGNATURE, _SIGNATURE_FORM, signature),
    )
    for name, form, value in forms:
        if not form.fullmatch(value):
            raise UnauthorizedError(
                f"{name} has a form that it cannot have.",
                remedy="A hotkey is an SS58 address, a nonce the Unix time in whole seconds, a signature 64 bytes in "
                "hexadecimal.",
            )
    _check_time(int(nonce), int(pool.clock.now().timestamp()))
    return Claim(await known_hotkey(pool, address), nonce, bytes.fromhex(signature.removeprefix("0x")))


class HotkeySignatures:
    """ASGI layer within the one that reads bodies: lets a claim of a hotkey pass once its signature fits."""

    def __init__(self, app: ASGIApp, pool: Pool) -> None:
        self._app, self._pool = app, pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        claim: Claim | None = scope.get(SIGNED)
        if claim is None:
            await self._app(scope, receive, send)
            return
        first: list[Message] = [await receive()]
        await self._check(claim, scope["method"], first[0].get("body", b""))

        async def replay() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, replay, send)

    async def _check(self, claim: Claim, method: str, body: bytes) -> None:
        """Raise unless the claim is right; a request that has a body is signed over it, another over its purpose."""
        signed_body = body if method in _WITH_BODY else None
        if signed_body is None and body:
            raise InvalidInputError(f"A {method} request carries a body, which its signature cannot cover.")
        about = "the SHA-256 of the body" if signed_body is not None else f"the word {MANAGEMENT}"
        message = management_message(claim.hotkey.address, claim.nonce, body=signed_body)
        what = f"HOTKEY:HOTKEY:NONCE: and {about}"
        await check_signature(self._pool, claim.hotkey, message, claim.signature, what)


def _check_time(stamp: int, now: int) -> None:
    if abs(now - stamp) < NONCE_SECONDS:
        return
    how = f"{now - stamp} s old" if now > stamp else f"{stamp - now} s ahead"
    raise ClockSkewError(
        f"Clock skew: the request is {how} by control's clock (it says Unix time {stamp}, control's clock {now}); "
        f"less than {NONCE_SECONDS} s are taken.",
        remedy="Set the clocks of both machines (`timedatectl set-ntp true`), then ask again.",
    )


def _header(scope: Scope, name: str) -> str | None:
    values = [value for key, value in scope["headers"] if key == name.lower().encode()]
    return values[0].decode("latin-1") if len(values) == 1 else None
