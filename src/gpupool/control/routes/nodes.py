"""Nodes and their devices."""

from dataclasses import replace

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.contracts.control import DeviceView, NodeView, PoolView
from gpupool.control.pool import Pool
from gpupool.control.routes.paging import Cursor, Limit, PoolHere, answer, page
from gpupool.control.views import device_views, node_view, node_views, pool_view
from gpupool.core.errors import NotFoundError

router = APIRouter(prefix="/v1", tags=["fleet"])


@router.get("/pool", response_model=PoolView)
async def show_pool(pool: PoolHere) -> Response:
    """Show the pool in one look."""
    return answer(pool_view(await pool.snapshot(), pool))


@router.get("/nodes", response_model=list[NodeView])
async def list_nodes(pool: PoolHere, cursor: Cursor = None, limit: Limit = 1000) -> Response:
    """List the nodes, oldest first."""

    async def build() -> Response:
        return page(node_views(await pool.snapshot(), pool.links), cursor, limit, lambda node: node.id)

    return await pool.answers.get(f"nodes {cursor} {limit}", build)


@router.get("/nodes/{node}", response_model=NodeView)
async def show_node(pool: PoolHere, node: str) -> Response:
    """Show a node by name or id."""
    return await _shown(pool, node)


@router.post("/nodes/{node}/lock", response_model=NodeView)
async def lock_node(pool: PoolHere, node: str) -> Response:
    """Place nothing new on a node; what runs there stays."""
    await _set_lock(pool, node, locked=True)
    return await _shown(pool, node)


@router.post("/nodes/{node}/unlock", response_model=NodeView)
async def unlock_node(pool: PoolHere, node: str) -> Response:
    """Let new work come to a node again."""
    await _set_lock(pool, node, locked=False)
    return await _shown(pool, node)


@router.get("/devices", response_model=list[DeviceView])
async def list_devices(pool: PoolHere, cursor: Cursor = None, limit: Limit = 1000) -> Response:
    """List the devices of all nodes with what is held of them."""

    async def build() -> Response:
        return page(device_views(await pool.snapshot()), cursor, limit, lambda device: device.id)

    return await pool.answers.get(f"devices {cursor} {limit}", build)


def _not_found(node: str) -> NotFoundError:
    return NotFoundError(f"There is no node {node[:100]!r}.", remedy="See `gpupool node list`.")


async def _shown(pool: Pool, name_or_id: str) -> Response:
    snapshot = await pool.snapshot()
    node = snapshot.find_node(name_or_id)
    if node is None:
        raise _not_found(name_or_id)
    return answer(node_view(node, snapshot, pool.links))


async def _set_lock(pool: Pool, name_or_id: str, *, locked: bool) -> None:
    async with pool.change() as change:
        for node in await change.writer.nodes():
            if name_or_id in {node.id, node.name}:
                break
        else:
            raise _not_found(name_or_id)
        if node.locked is not locked:
            await change.writer.put_node(replace(node, locked=locked))
            await change.emit("node.locked" if locked else "node.unlocked", node.id, node=node.name)
