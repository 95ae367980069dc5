"""Placements (users say deployments) and what their processes wrote."""

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from gpupool.contracts.agent_link import Command, LogsOrder
from gpupool.contracts.control import PlacementView
from gpupool.control.pool import Pool
from gpupool.control.routes.paging import Cursor, Limit, PoolHere, answer, page
from gpupool.control.views import placement_view
from gpupool.core.errors import DeadlineError, NotFoundError, UnavailableError
from gpupool.core.ids import new_id
from gpupool.fleet.placements import Placement

router = APIRouter(prefix="/v1/placements", tags=["placements"])
LOG_SECONDS: Final = 10.0


@router.get("", response_model=list[PlacementView])
async def list_placements(
    pool: PoolHere,
    workload: Annotated[str | None, Query(max_length=100, description="Only of this workload.")] = None,
    node: Annotated[str | None, Query(max_length=100, description="Only on this node.")] = None,
    live: Annotated[bool | None, Query(description="Only live, or only final ones.")] = None,
    cursor: Cursor = None,
    limit: Limit = 1000,
) -> Response:
    """List live placements and the latest 1000 final ones, newest first."""
    snapshot = await pool.snapshot()
    found: list[Placement] = []
    if live is not False:
        found += snapshot.live
    if live is not True:
        found += snapshot.final
    found.sort(key=lambda placement: (placement.created_at, placement.id), reverse=True)
    views = [
        view
        for view in (placement_view(placement, snapshot) for placement in found)
        if workload in {None, view.workload, view.workload_id} and node in {None, view.node, view.node_id}
    ]
    return page(views, cursor, limit, lambda view: view.id)


@router.get("/{placement}", response_model=PlacementView)
async def show_placement(pool: PoolHere, placement: str) -> Response:
    """Show a placement, however old."""
    found = await _find(pool, placement)
    return answer(placement_view(found, await pool.snapshot()))


@router.get(
    "/{placement}/logs",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}}, "description": "The last lines, as the process wrote them."}
    },
)
async def placement_logs(
    pool: PoolHere, placement: str, lines: Annotated[int, Query(ge=1, le=10_000)] = 200
) -> Response:
    """Return the last lines that a placement's process wrote; its node is asked for them now."""
    found = await _find(pool, placement)
    link = pool.links.get(found.node_id)
    if link is None or link.stream is None:
        raise UnavailableError(
            f"The node of {placement} is not connected, so its logs cannot be read.",
            remedy="Check that the agent of that node runs (`gpupool node list`), then try again.",
        )
    order = LogsOrder(request_id=new_id("req"), placement_id=found.id, lines=lines)
    with pool.logs.expect(order.request_id, found.node_id) as answered:
        link.stream.push(Command(seq=0, kind="logs", payload=order.model_dump(mode="json")))
        try:
            async with asyncio.timeout(LOG_SECONDS):
                text = await answered
        except TimeoutError as error:
            raise DeadlineError(
                f"The node did not send the logs of {placement} within {LOG_SECONDS:g} s.",
                remedy="Try again; if it stays, look at the agent's log on that node.",
            ) from error
    headers = {"X-Content-Type-Options": "nosniff"}
    return Response(text, media_type="text/plain; charset=utf-8", headers=headers)


async def _find(pool: Pool, placement_id: str) -> Placement:
    async with pool.store.read() as reader:
        found = await reader.placement(placement_id)
    if found is None:
        raise NotFoundError(
            f"There is no placement {placement_id[:100]!r}.", remedy="See `gpupool chute show NAME`."
        )
    return found
