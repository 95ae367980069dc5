"""How a node becomes known, and what control forgets at its own start.

The same public key is always the same node. A name belongs to the key that took it first.
"""

from dataclasses import replace
from typing import Final

from gpupool.contracts.agent_link import JoinRequest
from gpupool.control.pool import Change, Pool
from gpupool.control.recording import move_node
from gpupool.core.errors import ConflictError, LimitReachedError
from gpupool.core.ids import new_id
from gpupool.fleet.nodes import Node, NodeState

MAX_NODES: Final = 20_000


async def join(change: Change, request: JoinRequest) -> Node:
    """Return the node of this key, made or brought up to date; raise ConflictError where its name is taken."""
    known = await change.writer.node_by_key(request.public_key)
    nodes = await change.writer.nodes()
    for other in nodes:
        if other.name == request.name and other != known:
            raise ConflictError(
                f"The name {request.name} belongs to another node ({other.id}), which has another key.",
                remedy="Give this node another name with GPUPOOL_NODE_NAME, or bring back the key file"
                " (agent/node.key) of the node that had this one.",
            )
    if known is None:
        if len(nodes) >= MAX_NODES:
            raise LimitReachedError(f"The pool has {MAX_NODES} nodes, and takes no more.")
        node = Node(
            id=new_id("node"),
            name=request.name,
            public_key=request.public_key,
            address=request.address,
            hourly_usd=request.hourly_usd,
            runtimes=tuple(request.runtimes),
            joined_at=change.at,
            seen_at=change.at,
        )
        await change.writer.put_node(node)
        await change.emit("node.joined", node.id, node=node.name, address=node.address)
        return node
    node = replace(
        known,
        name=request.name,
        address=request.address,
        hourly_usd=request.hourly_usd,
        runtimes=tuple(request.runtimes),
    )
    if node != known:
        await change.writer.put_node(node)
        await change.emit("node.changed", node.id, node=node.name, address=node.address)
    return node


async def forget_sessions(pool: Pool) -> None:
    """Take every node as unreachable until it shows its inventory to this run of control.

    Endpoints of the last run are therefore never handed out as live.
    """
    async with pool.change() as change:
        for node in await change.writer.nodes():
            if await change.writer.placements(node_id=node.id, live=True, limit=1):
                pool.awaited.add(node.id)
            unheard = replace(node, session=None)
            if unheard != node:
                await change.writer.put_node(unheard)
            if node.state in {NodeState.READY, NodeState.VERIFYING}:
                await move_node(change, unheard, NodeState.UNREACHABLE, "control has started")
        await change.emit("control.started", pool.instance_id)
