"""How a node becomes known, and what control forgets at its own start.

The same public key is always the same node, until that node is removed: then its key lets nobody in, unless an
operator has minted a token for it since. A name belongs to the key that took it first. What a person has said of a
node stays, whatever its agent says.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

from gpupool.contracts.agent_link import JoinRequest
from gpupool.control.pool import Change, Pool
from gpupool.core.errors import ConflictError, LimitReachedError, NodeRemovedError, UnauthorizedError
from gpupool.core.ids import new_id
from gpupool.fleet.join_tokens import JoinToken, digest_of
from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.ports.store import Reader

MAX_NODES: Final = 20_000
_EVERY: Final = 1_000_000


def removal(node: Node) -> NodeRemovedError:
    """Return what a removed node is told."""
    when = f" at {node.removed_at:%Y-%m-%d %H:%M} UTC" if node.removed_at else ""
    return NodeRemovedError(
        f"The node {node.name} was removed from the pool{when}; its key is not taken any more."
    )


async def valid_token(reader: Reader, token: str, now: datetime) -> JoinToken:
    """Return the minted token, still good for a join now; raise UnauthorizedError where it is not."""
    found = await reader.join_token(digest_of(token))
    if found is None:
        raise UnauthorizedError(
            "The join token is missing or wrong.",
            remedy="Make one with `gpupool node add`, or give the agent the token in keys/join.token of control's"
            " state folder.",
        )
    why = found.refusal(now)
    if why is not None:
        raise UnauthorizedError(
            f"The join token {found.id} {why}.", remedy="Make a new one with `gpupool node add`."
        )
    return found


async def join(change: Change, request: JoinRequest, token: JoinToken | None = None) -> Node:
    """Return the node of this key, made or brought up to date; ``token``: the minted one it joins with, if any.

    Raises ConflictError where its name is taken, NodeRemovedError where the node was removed since the token was made.
    """
    known = await change.writer.node_by_key(request.public_key)
    if known is not None and known.removed:
        if token is None or known.removed_at is None or token.created_at <= known.removed_at:
            raise removal(known)
        known = None
    name = _name(request, known, token)
    other = await change.writer.node_by_name(name)
    if other is not None and other != known:
        raise ConflictError(
            f"The name {name} belongs to another node ({other.id}), which has another key.",
            remedy="Give this node another name with GPUPOOL_NODE_NAME, bring back the key file (agent/node.key)"
            f" of the node that had this one, or remove that one with `gpupool node remove {name}`.",
        )
    if known is not None:
        return await _brought_up_to_date(change, replace(known, name=name), known, request)
    if await change.writer.node_count() >= MAX_NODES:
        raise LimitReachedError(f"The pool has {MAX_NODES} nodes, and takes no more.")
    return await _new(change, name, request, token)


def _name(request: JoinRequest, known: Node | None, token: JoinToken | None) -> str:
    if token is not None and token.node_name is not None:
        return token.node_name
    return known.name if known is not None and "name" in known.pinned else request.name


async def _brought_up_to_date(change: Change, node: Node, known: Node, request: JoinRequest) -> Node:
    node = replace(
        node,
        address=request.address,
        hourly_usd=known.hourly_usd if "hourly_usd" in known.pinned else request.hourly_usd,
        runtimes=tuple(request.runtimes),
    )
    if node != known:
        await change.writer.put_node(node)
        await change.emit("node.changed", node.id, node=node.name, address=node.address)
    return node


async def _new(change: Change, name: str, request: JoinRequest, token: JoinToken | None) -> Node:
    told = {"name": token and token.node_name, "hourly_usd": token and token.hourly_usd}
    pinned = frozenset(field for field, value in told.items() if value is not None)
    node = Node(
        id=new_id("node"),
        name=name,
        public_key=request.public_key,
        address=request.address,
        hourly_usd=token.hourly_usd if token and "hourly_usd" in pinned else request.hourly_usd,
        region=token.region if token else None,
        short_ref=token.short_ref if token else None,
        pinned=pinned,
        runtimes=tuple(request.runtimes),
        joined_at=change.at,
        seen_at=change.at,
    )
    await change.writer.put_node(node)
    if token is not None:
        await change.writer.put_join_token(token.spent())
    await change.emit("node.joined", node.id, node=node.name, address=node.address)
    return node


async def forget_sessions(pool: Pool) -> None:
    """Take every node as unreachable until it shows its inventory to this run of control.

    Endpoints of the last run are therefore never handed out as live.
    """
    async with pool.change() as change:
        members = await change.writer.nodes()
        live = await change.writer.placements(live=True, limit=_EVERY)
        pool.awaited.update(placement.node_id for placement in live)
        unheard = []
        for node in members:
            there = node.state in {NodeState.READY, NodeState.VERIFYING}
            if there:
                reason = "control has started"
                await change.emit("node.unreachable", node.id, node=node.name, reason=reason)
            if there or node.session is not None:
                state = NodeState.UNREACHABLE if there else node.state
                unheard.append(replace(node, session=None, state=state))
        await change.writer.note_nodes(unheard)
        await change.emit("control.started", pool.instance_id)
