"""Nodes and their devices."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from gpupool.contracts.control import DeviceView, NodeView, PoolView
from gpupool.contracts.nodes import DrainView, NodeSettings
from gpupool.control import tending
from gpupool.control.draining import drain_view
from gpupool.control.node_lines import NodeLines, has_gpu
from gpupool.control.pool import Pool
from gpupool.control.routes.paging import JSON, By, Cursor, Limit, PoolHere, answer, cut
from gpupool.control.views import device_views, node_view, pairs_of_devices, pool_view
from gpupool.fleet.nodes import Node, NodeState

router = APIRouter(prefix="/v1", tags=["fleet"])
_DEVICES = TypeAdapter(list[DeviceView])
_Filter = Annotated[str | None, Query(max_length=100)]


async def _lines(request: Request) -> NodeLines:
    lines: NodeLines = request.app.state.node_lines
    return lines


@router.get("/pool", response_model=PoolView)
async def show_pool(pool: PoolHere) -> Response:
    """Show the pool in one look."""
    return answer(pool_view(await pool.snapshot(), pool))


@router.get("/nodes", response_model=list[NodeView])
async def list_nodes(
    pool: PoolHere,
    lines: Annotated[NodeLines, Depends(_lines)],
    state: Annotated[NodeState | None, Query(description="Only in this state; removed ones, too.")] = None,
    region: _Filter = None,
    gpu: Annotated[str | None, Query(max_length=100, description="Only with a GPU of this model.")] = None,
    cursor: Cursor = None,
    limit: Limit = 1000,
) -> Response:
    """List the nodes, oldest first; removed ones only where their state is asked for."""

    async def build() -> Response:
        snapshot = await pool.snapshot()
        found = [
            node
            for node in _of(list(snapshot.nodes.values()), state, region)
            if gpu is None or has_gpu(snapshot, node, gpu)
        ]
        shown, more = cut(found, cursor, limit, lambda node: node.id)
        body = lines.array(snapshot, pool.links, shown)
        return Response(body, media_type=JSON, headers=more)

    return await pool.answers.get(f"nodes {state} {region!r} {gpu!r} {cursor} {limit}", build)


def _of(nodes: list[Node], state: NodeState | None, region: str | None) -> list[Node]:
    return [
        node
        for node in nodes
        if (not node.removed if state is None else node.state is state) and region in {None, node.region}
    ]


@router.get("/nodes/{node}", response_model=NodeView)
async def show_node(pool: PoolHere, node: str) -> Response:
    """Show a node by name or id; by id also a removed one."""
    return await _shown(pool, node)


@router.patch("/nodes/{node}", response_model=NodeView)
async def set_node(pool: PoolHere, by: By, node: str, request: NodeSettings) -> Response:
    """Note what a person says of a node; a field left out stays."""
    async with pool.change(by) as change:
        await tending.describe(change, await tending.find_member(change, node), request)
    return await _shown(pool, node)


@router.delete("/nodes/{node}", status_code=204, response_class=Response)
async def remove_node(
    pool: PoolHere,
    by: By,
    node: str,
    force: Annotated[
        bool, Query(description="End what runs there; else a node with work is refused.")
    ] = False,
) -> Response:
    """Take a node out of the pool for good: its key is refused from now on, its history stays."""
    async with pool.change(by) as change:
        found = await tending.find_member(change, node)
        await tending.remove(change, found, force=force)
    pool.forget_node(found.id)
    return Response(status_code=204)


@router.post("/nodes/{node}/lock", response_model=NodeView)
async def lock_node(pool: PoolHere, by: By, node: str) -> Response:
    """Place nothing new on a node; what runs there stays."""
    async with pool.change(by) as change:
        await tending.set_lock(change, await tending.find_member(change, node), locked=True)
    return await _shown(pool, node)


@router.post("/nodes/{node}/unlock", response_model=NodeView)
async def unlock_node(pool: PoolHere, by: By, node: str) -> Response:
    """Let new work come to a node again."""
    async with pool.change(by) as change:
        await tending.set_lock(change, await tending.find_member(change, node), locked=False)
    return await _shown(pool, node)


@router.post("/nodes/{node}/drain", response_model=DrainView)
async def drain_node(pool: PoolHere, by: By, node: str) -> Response:
    """Move what runs on a node away, each deployment once its replacement elsewhere is active."""
    async with pool.change(by) as change:
        await tending.set_drain(change, await tending.find_member(change, node), draining=True)
    return await show_drain(pool, node)


@router.post("/nodes/{node}/undrain", response_model=NodeView)
async def undrain_node(pool: PoolHere, by: By, node: str) -> Response:
    """Let work stay on a node, and come to it again."""
    async with pool.change(by) as change:
        await tending.set_drain(change, await tending.find_member(change, node), draining=False)
    return await _shown(pool, node)


@router.get("/nodes/{node}/drain", response_model=DrainView)
async def show_drain(pool: PoolHere, node: str) -> Response:
    """Show what still runs on a node and what each deployment waits for."""
    snapshot = await pool.snapshot()
    found = snapshot.find_node(node)
    if found is None:
        raise tending.unknown_node(node)
    return answer(drain_view(snapshot, found, pool.strategy))


@router.get("/devices", response_model=list[DeviceView])
async def list_devices(pool: PoolHere, cursor: Cursor = None, limit: Limit = 1000) -> Response:
    """List the devices of all nodes with what is held of them."""

    async def build() -> Response:
        snapshot = await pool.snapshot()
        found = pairs_of_devices(snapshot)
        shown, more = cut(found, cursor, limit, lambda pair: pair[0].id)
        body = _DEVICES.dump_json(device_views(snapshot, shown))
        return Response(body, media_type=JSON, headers=more)

    return await pool.answers.get(f"devices {cursor} {limit}", build)


async def _shown(pool: Pool, name_or_id: str) -> Response:
    snapshot = await pool.snapshot()
    node = snapshot.find_node(name_or_id)
    if node is None:
        raise tending.unknown_node(name_or_id)
    return answer(node_view(node, snapshot, pool.links))
