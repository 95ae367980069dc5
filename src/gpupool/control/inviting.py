"""Join tokens: minting them for machines that are to become nodes, and taking them back.

The token itself is shown once, to whoever asked for it, and kept nowhere; control keeps its digest.
"""

import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Final

from gpupool.catalog import Catalog
from gpupool.contracts.nodes import InviteRequest
from gpupool.control.joining import valid_token
from gpupool.control.pool import Change, Pool
from gpupool.core.errors import ConflictError, InvalidInputError, LimitReachedError, NotFoundError
from gpupool.core.ids import new_id
from gpupool.fleet.join_tokens import PREFIX, JoinToken, digest_of

MAX_OPEN: Final = 10_000
"""Join tokens that may lie unused at a time."""
_KEPT: Final = timedelta(days=7)
"""How long an expired one is still listed."""


async def check_minted(pool: Pool, token: str) -> None:
    """Raise UnauthorizedError unless a machine could join with this minted token now."""
    async with pool.store.read() as reader:
        await valid_token(reader, token, pool.clock.now())


async def invite(change: Change, request: InviteRequest, catalog: Catalog) -> tuple[JoinToken, str]:
    """Mint a token; return what is kept of it, and the token. An unused one for the same node is revoked.

    Raises ConflictError where a node of that name is in the pool, InvalidInputError for a model that the catalog lacks.
    """
    _check_model(request.short_ref, catalog)
    await change.writer.forget_join_tokens(change.at - _KEPT)
    open_ones = [token for token in await change.writer.join_tokens() if token.refusal(change.at) is None]
    if len(open_ones) >= MAX_OPEN:
        raise LimitReachedError(f"{MAX_OPEN} join tokens lie unused, and there may be no more.")
    if request.name is not None:
        await _check_free(change, request.name)
        for earlier in open_ones:
            if earlier.node_name == request.name:
                await revoke(change, earlier)
    secret = PREFIX + secrets.token_urlsafe(32)
    token = JoinToken(
        id=new_id("jt"),
        digest=digest_of(secret),
        node_name=request.name,
        hourly_usd=request.hourly_usd,
        region=request.region,
        short_ref=request.short_ref,
        uses=request.uses,
        created_by=change.by,
        created_at=change.at,
        expires_at=change.at + timedelta(hours=request.valid_hours),
    )
    await change.writer.put_join_token(token)
    await change.emit("node.invited", token.id, node=token.node_name, uses=token.uses)
    return token, secret


async def revoke(change: Change, token: JoinToken) -> None:
    """Let nobody join with a token any more."""
    if not token.revoked:
        await change.writer.put_join_token(replace(token, revoked=True))
        await change.emit("node.uninvited", token.id, node=token.node_name)


async def revoke_by_id(change: Change, token_id: str) -> None:
    """Let nobody join with a token any more; raise NotFoundError where there is none of that id."""
    for token in await change.writer.join_tokens():
        if token.id == token_id:
            await revoke(change, token)
            return
    raise NotFoundError(f"There is no join token {token_id[:100]!r}.", remedy="See `gpupool node tokens`.")


def _check_model(short_ref: str | None, catalog: Catalog) -> None:
    if short_ref is not None:
        try:
            catalog.get(short_ref)
        except NotFoundError as error:
            raise InvalidInputError(error.message, remedy=error.remedy) from error


async def _check_free(change: Change, name: str) -> None:
    if any(node.name == name for node in await change.writer.nodes()):
        raise ConflictError(
            f"A node {name} is in the pool already.",
            remedy=f"Choose another name; if that machine is lost or set up anew, `gpupool node remove {name}` first.",
        )
