"""What people do with nodes: set aside, drain, describe, remove. Each is an event with who did it.

A node that is removed may be lost for good, so nothing here waits for its agent: what it ran counts as ended at once,
and the agent ends it for real when it hears that its key is refused.
"""

from dataclasses import replace

from gpupool.contracts.nodes import NodeSettings
from gpupool.control.pool import Change
from gpupool.control.recording import move_placement, note_drained
from gpupool.core.errors import NodeInUseError, NotFoundError
from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.placements import PlacementState

_EVERY = 1_000_000


def unknown_node(name: str) -> NotFoundError:
    """Return the error for a name or id that no node has."""
    return NotFoundError(f"There is no node {name[:100]!r}.", remedy="See `gpupool node list`.")


async def find_member(change: Change, name_or_id: str) -> Node:
    """Return the node of that name or id that is part of the pool; raise NotFoundError where there is none."""
    node = await change.writer.node(name_or_id) or await change.writer.node_by_name(name_or_id)
    if node is None or node.removed:
        raise unknown_node(name_or_id)
    return node


async def set_lock(change: Change, node: Node, *, locked: bool) -> None:
    """Let nothing new come to a node, or let it come again; what runs there stays."""
    if node.locked is not locked:
        await change.writer.put_node(replace(node, locked=locked))
        await change.emit("node.locked" if locked else "node.unlocked", node.id, node=node.name)


async def set_drain(change: Change, node: Node, *, draining: bool) -> None:
    """Have what runs on a node moved away, or let it stay after all. The reconciler moves it."""
    if node.draining is draining:
        return
    changed = replace(node, draining=draining)
    await change.writer.put_node(changed)
    await change.emit("node.draining" if draining else "node.undrained", node.id, node=node.name)
    await note_drained(change, node.id)


async def describe(change: Change, node: Node, settings: NodeSettings) -> None:
    """Note what a person says of a node; its agent's own word on that no longer counts, until it is taken back."""
    given = settings.model_dump(include=settings.model_fields_set)
    changed = replace(node, **given)
    if "hourly_usd" in given:
        pins = node.pinned - {"hourly_usd"}
        changed = replace(
            changed, pinned=pins if given["hourly_usd"] is None else pins | frozenset({"hourly_usd"})
        )
    if changed != node:
        await change.writer.put_node(changed)
        await change.emit("node.changed", node.id, node=node.name, **given)


async def remove(change: Change, node: Node, *, force: bool) -> None:
    """Take a node out of the pool; its record, placements and events stay.

    Raises NodeInUseError where work runs there, unless ``force`` says that it may end.
    """
    live = await change.writer.placements(node_id=node.id, live=True, limit=_EVERY)
    if live and not force:
        raise NodeInUseError(
            f"The node {node.name} runs {len(live)} deployment{'s' if len(live) > 1 else ''}.",
            remedy=f"Move the work first with `gpupool node drain {node.name} --wait`, or end it with"
            f" `gpupool node remove {node.name} --yes`.",
        )
    for placement in live:
        await move_placement(change, placement, PlacementState.ENDED, "its node was removed")
    pending = await change.writer.commands(node.id, limit=_EVERY)
    if pending:
        await change.writer.acknowledge(node.id, pending[-1].seq)
    for device in await change.writer.devices(node.id):
        if device.present:
            await change.writer.put_device(replace(device, present=False))
            await change.emit("device.absent", device.id, node=node.name, name=device.name)
    gone = replace(node.moved(NodeState.REMOVED), session=None, draining=False, removed_at=change.at)
    await change.writer.put_node(gone)
    await change.emit("node.removed", node.id, node=node.name, ended=len(live))
