"""What an event changes of what this control keeps in memory: others may have caused it.

Everything here may be taken twice, and of own changes too. Where it makes a link doubtful, the node's next report is
compared with the database instead of being waved through.
"""

from gpupool.control.pool import Pool
from gpupool.fleet.events import Event


def learn(pool: Pool, event: Event) -> None:
    """Take in one event."""
    node_id = event.subject
    if event.kind == "node.removed":
        pool.forget_node(node_id)
    elif event.kind == "node.connected":
        pool.awaited.discard(node_id)
        pool.links.connected_as(node_id, str(event.data.get("session")))
        pool.links.settle_disputes_with(node_id)
    elif event.kind == "node.ready":
        pool.links.recorded(node_id, silent=False)
    elif event.kind == "node.unreachable":
        pool.links.recorded(node_id, silent=True)
        if event.data.get("reason") == "left":
            pool.awaited.discard(node_id)
            pool.links.left(node_id)
            pool.links.settle_disputes_with(node_id)
    elif event.kind == "node.leaving":
        pool.links.is_leaving(node_id)
    elif event.kind == "pool.settled":
        pool.awaited.clear()
