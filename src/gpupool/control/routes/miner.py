"""The miner API that `chutes-miner-cli` calls, served as it is: its paths, its methods, its answers.

Reading and changing are told apart by role, not by method: there a server is locked by GET.
"""

from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import TypeAdapter
from starlette.responses import Response, StreamingResponse

from gpupool.contracts.miner_api import (
    PreflightView,
    Progress,
    PurgeReply,
    ServerArgs,
    ServerView,
    StartedView,
)
from gpupool.contracts.purging import PurgeRequest
from gpupool.control import tending
from gpupool.control.miner.adding import begin, progress
from gpupool.control.miner.servers import job_view, purged_deployment, server_views
from gpupool.control.pool import Pool
from gpupool.control.purging import purge, running_jobs
from gpupool.control.routes.paging import JSON, By, PoolHere, answer

router = APIRouter(tags=["miner"])
_STREAM: Final = "text/event-stream"


@router.get("/servers/", response_model=list[ServerView])
@router.get("/servers", response_model=list[ServerView], include_in_schema=False)
async def list_servers(pool: PoolHere) -> Response:
    """List the nodes with their GPUs and deployments, oldest first."""

    async def build() -> Response:
        snapshot = await pool.snapshot()
        found = server_views(snapshot, snapshot.members(), pool.catalog)
        return Response(TypeAdapter(list[Any]).dump_json(found), media_type=JSON)

    return await pool.answers.get("servers", build)


@router.post(
    "/servers/",
    response_class=StreamingResponse,
    responses={
        200: {"model": Progress, "description": "Lines `data: {timestamp, message}` until it is ready."}
    },
)
@router.post("/servers", response_class=StreamingResponse, include_in_schema=False)
async def add_server(pool: PoolHere, by: By, http: Request, args: ServerArgs) -> StreamingResponse:
    """Say what a machine costs, and tell how it gets ready; one that has not joined is answered 404 with the line for it."""
    node_id, adopted = await begin(pool, by, args, str(http.base_url).rstrip("/"))
    return StreamingResponse(progress(pool, by, node_id, args, adopted=adopted), media_type=_STREAM)


@router.get("/servers/{server}/delete_preflight", response_model=PreflightView)
async def preflight_delete(pool: PoolHere, server: str) -> Response:
    """Name the jobs that run on a node: deleting it breaks them."""
    node = (await pool.snapshot()).find_node(server)
    if node is None or node.removed:
        raise tending.unknown_node(server)
    async with pool.store.read() as reader:
        jobs = await running_jobs(reader, node.id)
    return answer(PreflightView(jobs=[job_view(job) for job in jobs]))


@router.delete("/servers/{server}", response_model=StartedView)
async def delete_server(pool: PoolHere, by: By, server: str) -> Response:
    """Take a node out of the pool and end what runs there."""
    async with pool.change(by) as change:
        node = await tending.find_member(change, server)
        await tending.remove(change, node, force=True)
    pool.forget_node(node.id)
    detail = f"{node.name} is removed; its agent ends what it runs when it hears of it. Its history stays under {node.id}."
    return answer(StartedView(detail=detail))


@router.get("/servers/{server}/lock", response_model=ServerView)
async def lock_server(pool: PoolHere, by: By, server: str) -> Response:
    """Place nothing new on a node; what runs there stays."""
    return await _locked(pool, by, server, locked=True)


@router.get("/servers/{server}/unlock", response_model=ServerView)
async def unlock_server(pool: PoolHere, by: By, server: str) -> Response:
    """Let new work come to a node again."""
    return await _locked(pool, by, server, locked=False)


@router.delete("/servers/{server}/deployments", response_model=PurgeReply)
async def purge_server(pool: PoolHere, by: By, server: str) -> Response:
    """End the deployments on a node, to be placed anew."""
    async with pool.change(by) as change:
        node = await tending.find_member(change, server)
        purged = await purge(change, PurgeRequest(node=node.id))
    return answer(PurgeReply(deployments_purged=[purged_deployment(one) for one in purged]))


@router.delete("/deployments/purge", response_model=PurgeReply)
async def purge_all(pool: PoolHere, by: By) -> Response:
    """End all deployments of chutes but jobs, to be placed anew."""
    async with pool.change(by) as change:
        purged = await purge(change, PurgeRequest(everything=True))
    return answer(PurgeReply(deployments_purged=[purged_deployment(one) for one in purged]))


@router.delete("/deployments/{deployment}", response_model=PurgeReply)
async def purge_one(pool: PoolHere, by: By, deployment: str) -> Response:
    """End one deployment, to be placed anew."""
    async with pool.change(by) as change:
        purged = await purge(change, PurgeRequest.model_construct(deployment=deployment))
    return answer(PurgeReply(deployments_purged=[purged_deployment(one) for one in purged]))


async def _locked(pool: Pool, by: str | None, server: str, *, locked: bool) -> Response:
    async with pool.change(by) as change:
        node = await tending.find_member(change, server)
        await tending.set_lock(change, node, locked=locked)
    snapshot = await pool.snapshot()
    return answer(server_views(snapshot, [snapshot.nodes[node.id]], pool.catalog)[0])
