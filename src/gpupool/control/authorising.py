"""API tokens: making them, taking them back, and what a request may do with one, or with a hotkey of the same role.

The operator token in the state folder is above all of them: whoever reads that file owns the machine that control
runs on.
"""

import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Final

from gpupool.contracts.api_tokens import ApiTokenRequest, ApiTokenView
from gpupool.control.hotkeys import HOTKEYS_PATH
from gpupool.control.pool import Change, Pool
from gpupool.core.errors import (
    ConflictError,
    ForbiddenError,
    LimitReachedError,
    NotFoundError,
    UnauthorizedError,
)
from gpupool.core.ids import new_id
from gpupool.fleet.api_tokens import PREFIX, ApiToken, Role, digest_of

MAX_TOKENS: Final = 1000
"""API tokens that may be usable at a time."""
TOKENS_PATH: Final = "/v1/tokens"
_RULED: Final = (TOKENS_PATH, HOTKEYS_PATH)
_READING: Final = frozenset({"GET", "HEAD"})
_CHANGING: Final = ("/lock", "/unlock")
"""What the miner API changes by GET."""
_MINER_PATHS: Final = ("/servers", "/deployments")


def is_miner_path(path: str) -> bool:
    """Tell whether a path is one of the miner API, which `chutes-miner-cli` calls."""
    return any(path == root or path.startswith(f"{root}/") for root in _MINER_PATHS)


async def authorised(pool: Pool, token: str, method: str, path: str) -> ApiToken:
    """Return the token that lets this request through.

    Raises UnauthorizedError where it is unknown, revoked or expired, ForbiddenError where its role does not reach.
    """
    async with pool.store.read() as reader:
        found = await reader.api_token(digest_of(token))
    if found is None:
        raise UnauthorizedError("The bearer token is wrong.")
    why = found.refusal(pool.clock.now())
    if why is not None:
        raise UnauthorizedError(
            f"The API token {found.name} {why}.", remedy="Ask an admin of the pool for a new one."
        )
    check_role(f"API token {found.name}", found.role, method, path)
    return found


def check_role(who: str, role: Role, method: str, path: str) -> None:
    """Raise ForbiddenError where a request takes another role than ``who`` has."""
    needed = needed_role(method, path)
    if role.rank < needed.rank:
        raise ForbiddenError(
            f"The {who} has the role {role.value}; {method} {path[:100]} takes {needed.value}.",
            remedy=f"Ask an admin of the pool for the role {needed.value}.",
        )


def needed_role(method: str, path: str) -> Role:
    """Return the least role that a request takes."""
    if any(path == ruled or path.startswith(f"{ruled}/") for ruled in _RULED):
        return Role.ADMIN
    if is_miner_path(path) and path.endswith(_CHANGING):
        return Role.OPERATOR
    return Role.VIEWER if method in _READING else Role.OPERATOR


async def make_token(change: Change, request: ApiTokenRequest) -> tuple[ApiToken, str]:
    """Make a token; return what is kept of it, and the token.

    Raises ConflictError where a usable token has that name, LimitReachedError where there are too many.
    """
    usable = [token for token in await change.writer.api_tokens() if token.refusal(change.at) is None]
    if any(token.name == request.name for token in usable):
        raise ConflictError(
            f"There is a token {request.name} already.",
            remedy=f"Choose another name, or `gpupool token revoke {request.name}` first.",
        )
    if len(usable) >= MAX_TOKENS:
        raise LimitReachedError(f"There are {MAX_TOKENS} API tokens, and may be no more.")
    secret = PREFIX + secrets.token_urlsafe(32)
    days = request.valid_days
    token = ApiToken(
        id=new_id("at"),
        name=request.name,
        digest=digest_of(secret),
        role=request.role,
        created_by=change.by,
        created_at=change.at,
        expires_at=None if days is None else change.at + timedelta(days=days),
    )
    await change.writer.put_api_token(token)
    await change.emit("token.made", token.id, name=token.name, role=token.role.value)
    return token, secret


async def revoke_token(change: Change, name: str) -> None:
    """Let a token, by its name or id, open nothing any more; raise NotFoundError where no usable one is called so."""
    for token in await change.writer.api_tokens():
        if name in {token.name, token.id} and not token.revoked:
            await change.writer.put_api_token(replace(token, revoked=True))
            await change.emit("token.revoked", token.id, name=token.name, role=token.role.value)
            return
    raise NotFoundError(f"There is no token {name[:100]!r} to revoke.", remedy="See `gpupool token list`.")


def token_view(token: ApiToken, pool: Pool) -> ApiTokenView:
    """Show a token, which opens nothing."""
    why_not = token.refusal(pool.clock.now())
    return ApiTokenView(
        id=token.id,
        name=token.name,
        role=token.role,
        usable=why_not is None,
        why_not=why_not,
        created_by=token.created_by,
        created_at=token.created_at,
        expires_at=token.expires_at,
    )
