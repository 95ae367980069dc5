"""Purging: deployments ended so that they are placed anew."""

from typing import Any

from fastapi import APIRouter
from pydantic import TypeAdapter
from starlette.responses import Response

from gpupool.contracts.purging import PurgedView, PurgeRequest
from gpupool.control.purging import purge
from gpupool.control.routes.paging import JSON, By, PoolHere

router = APIRouter(prefix="/v1/purges", tags=["placements"])


@router.post("", response_model=list[PurgedView])
async def purge_deployments(pool: PoolHere, by: By, request: PurgeRequest) -> Response:
    """End deployments, of all chutes, of one node or a single one; what is wanted stays and is placed anew."""
    async with pool.change(by) as change:
        purged = await purge(change, request)
    return Response(TypeAdapter(list[Any]).dump_json(purged), media_type=JSON)
