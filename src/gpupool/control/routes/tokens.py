"""API tokens: made, listed and revoked."""

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.contracts.api_tokens import ApiTokenReply, ApiTokenRequest, ApiTokenView
from gpupool.control.authorising import TOKENS_PATH, make_token, revoke_token, token_view
from gpupool.control.routes.paging import By, Cursor, Limit, PoolHere, answer, page

router = APIRouter(prefix=TOKENS_PATH, tags=["access"])


@router.post("", status_code=201, response_model=ApiTokenReply)
async def make_api_token(pool: PoolHere, by: By, request: ApiTokenRequest) -> Response:
    """Make a token for a person or a program; it is shown this once."""
    async with pool.change(by) as change:
        token, secret = await make_token(change, request)
    return answer(ApiTokenReply(**token_view(token, pool).model_dump(), token=secret), 201)


@router.get("", response_model=list[ApiTokenView])
async def list_api_tokens(pool: PoolHere, cursor: Cursor = None, limit: Limit = 1000) -> Response:
    """List API tokens, oldest first, those that open nothing any more too."""
    async with pool.store.read() as reader:
        tokens = await reader.api_tokens()
    return page([token_view(token, pool) for token in tokens], cursor, limit, lambda token: token.id)


@router.delete("/{token}", status_code=204, response_class=Response)
async def revoke_api_token(pool: PoolHere, by: By, token: str) -> Response:
    """Let a token, named by its name or id, open nothing any more."""
    async with pool.change(by) as change:
        await revoke_token(change, token)
    return Response(status_code=204)
