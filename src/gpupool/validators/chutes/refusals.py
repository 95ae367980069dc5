"""A validator's refusals as the pool's own errors: what is to be waited for, what to be given up, what to be mended.

Source: chutes.md section 2.2. A signature that is refused because of the clock says so only by its nonce, so the answer's
own date is compared with ours before anything else is believed.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from gpupool.core.errors import (
    BusyError,
    ClockSkewError,
    ConflictError,
    ForbiddenError,
    GpupoolError,
    InvalidInputError,
    NoCapacityError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from gpupool.validators.chutes.signing import NONCE_SECONDS

_MOST_WORDS: Final = 500
_SKEW_SECONDS: Final = 30.0
"""A difference below this is the way and the wait."""


def refusal(
    api: str, path: str, status: int, headers: Mapping[str, str], body: bytes, asked: float
) -> GpupoolError:
    """Return the error for an answer that is none of 2xx; ``asked``: when it was asked for, seconds since 1970."""
    where = f"The validator at {api}"
    said = words_of(body)
    if status in {401, 403}:
        skew = _skew(headers, asked)
        if skew is not None and (abs(skew) > NONCE_SECONDS / 2 or "nonce" in said.casefold()):
            return ClockSkewError(
                f"This machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the validator's at "
                f"{api}, which takes signatures for {NONCE_SECONDS} s."
            )
    if status == 429:
        return _busy(where, path, headers, said)
    if status >= 500 or status < 400:
        return UnavailableError(
            f"{where} answered {path} with {status}{said and ': '}{said}.",
            remedy="The pool asks again by itself; nothing was changed.",
        )
    kind, remedy = _KINDS.get(status, (InvalidInputError, "Nothing was changed."))
    return kind(f"{where} refused {path} with {status}{said and ': '}{said}.", remedy=remedy)


_KINDS: Final[Mapping[int, tuple[type[GpupoolError], str]]] = {
    401: (
        UnauthorizedError,
        "Check that the hotkey is the one registered with this validator, and that the validator's own is right.",
    ),
    403: (ForbiddenError, "This is not for this miner, or not now; the pool takes another one."),
    404: (NotFoundError, "It is gone, or another version took its place; the pool reads the lists anew."),
    409: (
        ConflictError,
        "It is known there already, perhaps from an earlier installation: have the validator forget it, then try again.",
    ),
    423: (NoCapacityError, "The pool tries the next app, and this one later."),
}


def _busy(where: str, path: str, headers: Mapping[str, str], said: str) -> BusyError:
    after = headers.get("Retry-After", "")
    when = f"in {after} s" if after.isdigit() else "later"
    return BusyError(
        f"{where} is asked too often for {path}{said and ': '}{said}.",
        remedy=f"The pool asks again {when} by itself.",
        retry_after=float(after) if after.isdigit() else None,
    )


def words_of(body: bytes) -> str:
    """Return what a refusal says, in one line of printable characters."""
    text = body[: 4 * _MOST_WORDS].decode(errors="replace")
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    detail = found.get("detail", found.get("error")) if isinstance(found, dict) else None
    if detail is not None:
        text = detail if isinstance(detail, str) else json.dumps(detail)
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line[:_MOST_WORDS].rstrip(".")


def _skew(headers: Mapping[str, str], asked: float) -> float | None:
    """Return by how many seconds our clock is ahead; None where that cannot be told, or is nothing."""
    try:
        theirs = parsedate_to_datetime(headers["Date"])
    except (KeyError, ValueError):
        return None
    if theirs.tzinfo is None:
        theirs = theirs.replace(tzinfo=UTC)
    skew = (datetime.fromtimestamp(asked, UTC) - theirs).total_seconds()
    return skew if abs(skew) > _SKEW_SECONDS else None
