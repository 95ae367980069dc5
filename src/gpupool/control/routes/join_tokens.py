"""Join tokens: minted, listed and revoked."""

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.contracts.nodes import InviteReply, InviteRequest, JoinTokenView
from gpupool.control.inviting import invite, revoke_by_id
from gpupool.control.routes.paging import By, Cursor, Limit, PoolHere, answer, page
from gpupool.control.views import join_token_view

router = APIRouter(prefix="/v1/join-tokens", tags=["fleet"])


@router.post("", status_code=201, response_model=InviteReply)
async def mint_join_token(pool: PoolHere, by: By, request: InviteRequest) -> Response:
    """Mint a token with which a machine becomes a node; it is shown this once."""
    async with pool.change(by) as change:
        token, secret = await invite(change, request, pool.catalog)
    view = join_token_view(token, pool.clock.now())
    return answer(InviteReply(**view.model_dump(), token=secret), 201)


@router.get("", response_model=list[JoinTokenView])
async def list_join_tokens(pool: PoolHere, cursor: Cursor = None, limit: Limit = 1000) -> Response:
    """List join tokens, oldest first; expired ones for a week."""
    async with pool.store.read() as reader:
        tokens = await reader.join_tokens()
    views = [join_token_view(token, pool.clock.now()) for token in tokens]
    return page(views, cursor, limit, lambda token: token.id)


@router.delete("/{token}", status_code=204, response_class=Response)
async def revoke_join_token(pool: PoolHere, by: By, token: str) -> Response:
    """Let nobody join with a token any more, named by its id."""
    async with pool.change(by) as change:
        await revoke_by_id(change, token)
    return Response(status_code=204)
