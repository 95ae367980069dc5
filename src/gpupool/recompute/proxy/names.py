"""Addresses of nodes that are given by name: known from the last time, while the name server is slow or away.

Looking a name up is a call over the network like any other: it may take ten seconds and fail, while the node itself is
well. So what was found is used for some time, is looked up anew in the background, and outlives a name server. A node
that cannot be connected may have moved: its name is looked up again soon.
"""

import asyncio
import ipaddress
import socket
from typing import Final

import structlog

from gpupool.recompute.proxy.nodes import Node

FRESH_SECONDS: Final = 30.0
"""How long addresses are used without a look."""
_PATIENCE_SECONDS: Final = 0.2
"""How long a connection waits for newer addresses where older ones are known."""
_MOVED_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 5.0
"""Between two tries where the name server fails."""
log = structlog.get_logger(__name__)


async def addresses_of(node: Node) -> tuple[str, ...]:
    """Return the addresses of a node, best first; raises OSError where its name has none and never had."""
    host = node.wish.host
    if _is_address(host):
        return (host,)
    if asyncio.get_running_loop().time() < node.look_up_at and node.addresses:
        return node.addresses
    looking, patience = node.looking_up, 0.0
    if looking is None:
        looking = node.looking_up = asyncio.ensure_future(_look_up(node))
        # Whoever waited for it may have given up before it failed.
        looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        patience = _PATIENCE_SECONDS
    if node.addresses:
        await asyncio.wait({looking}, timeout=patience)
        return node.addresses
    return await asyncio.shield(looking)


def moved(node: Node) -> None:
    """Let a node that cannot be connected be looked up again, once a second at most."""
    node.look_up_at = min(node.look_up_at, asyncio.get_running_loop().time() + _MOVED_SECONDS)


async def _look_up(node: Node) -> tuple[str, ...]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(node.wish.host, node.wish.port, type=socket.SOCK_STREAM)
        node.addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
        node.look_up_at = loop.time() + FRESH_SECONDS
    except OSError as error:
        if not node.addresses:
            raise
        node.look_up_at = loop.time() + _AGAIN_SECONDS
        why = error.strerror or str(error)
        log.warning("name_not_found", node=node.name, why=why, using=list(node.addresses))
    finally:
        node.looking_up = None
    return node.addresses


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
