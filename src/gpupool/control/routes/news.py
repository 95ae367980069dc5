"""What happened, and what can be called: the two things that others follow by long poll."""

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic import TypeAdapter
from starlette.responses import Response

from gpupool.contracts.control import EventView
from gpupool.contracts.feed import FOLLOWER_HEADER, EndpointsView
from gpupool.control.feeding import endpoints_view
from gpupool.control.pool import Pool
from gpupool.control.routes.alerts import DeskHere
from gpupool.control.routes.paging import JSON, MAX_WAIT, Limit, PoolHere, answer
from gpupool.control.views import event_view
from gpupool.fleet.workloads import Protocol

router = APIRouter(prefix="/v1")
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait for news when there is none.")]
After = Annotated[int, Query(ge=0, lt=2**63, description="Number of the newest event already seen.")]


@router.get("/events", tags=["events"], response_model=list[EventView])
async def list_events(
    pool: PoolHere,
    after: After = 0,
    limit: Limit = 100,
    wait: Wait = 0,
    subject: Annotated[str | None, Query(max_length=100, description="Only of this thing.")] = None,
    by: Annotated[
        str | None, Query(max_length=200, description="Only what this one asked for: NAME, or NAME@ADDRESS.")
    ] = None,
    asked: Annotated[bool, Query(description="Only what somebody asked for, not what the pool did.")] = False,
    latest: Annotated[bool, Query(description="The last ones of them instead of the first ones.")] = False,
) -> Response:
    """List events in the order they were committed; with ``wait`` as soon as there is one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    seen = after
    while True:
        left = deadline - loop.time()
        if left > 0 and seen >= pool.changes.seq:
            await pool.changes.until(partial(_is_news, pool, seen), left)
        seen = pool.changes.seq
        async with pool.store.read() as reader:
            events = await reader.events(
                after=after, limit=limit, subject=subject, actor=by, asked=asked, latest=latest
            )
        if events or pool.changes.closed or deadline <= loop.time():
            break
    body = TypeAdapter(list[Any]).dump_json([event_view(event) for event in events])
    return Response(body, media_type=JSON)


def _is_news(pool: Pool, seen: int) -> bool:
    return pool.changes.seq > seen


@router.get("/endpoints", tags=["endpoints"], response_model=EndpointsView)
async def follow_endpoints(
    pool: PoolHere,
    desk: DeskHere,
    protocol: Annotated[Protocol | None, Query(description="Only of this protocol.")] = None,
    after: Annotated[int | None, Query(ge=0, lt=2**63, description="Revision already seen.")] = None,
    wait: Wait = 0,
    follower: Annotated[
        str | None,
        Header(alias=FOLLOWER_HEADER, max_length=100, description="Who follows the feed, for the alerts."),
    ] = None,
) -> Response:
    """Return everything that can be called: at once when newer than ``after``, else when it is, else after ``wait``."""
    if follower is not None:
        desk.followers.heard(follower)
    if after is not None and wait:
        await pool.changes.until(lambda: pool.changes.seq != after, wait)

    async def build() -> Response:
        complete = not pool.awaited
        return answer(endpoints_view(await pool.snapshot(), protocol, complete=complete))

    return await pool.answers.get(f"endpoints {protocol}", build)
