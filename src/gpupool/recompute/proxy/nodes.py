"""The servers behind the proxy: where each came from, what it speaks, and its open connections.

A node has a name (``host:port``), and sources that want it: the command line, the file, the feed. It is there while
one source names it. What it speaks is found by asking, unless its source knows.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from gpupool.recompute.addresses import format_address
from gpupool.recompute.proxy.trust import Trust

if TYPE_CHECKING:
    import asyncio
    import ssl

    from gpupool.recompute.proxy.links import Link

KEPT_IDLE: Final = 4
"""Idle connections kept to a node: each costs a Gigahorse server one of its few places."""
IDLE_SECONDS: Final = 3.0


class Kind(StrEnum):
    """A protocol that a node takes requests in."""

    FRAMES = "frames"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class NodeWish:
    """A node as a source names it."""

    host: str
    port: int
    weight: float = 1.0
    sockets: int | None = None
    kind: Kind | None = None
    """What it speaks, where the source knows."""
    draining: bool = False
    trust: Trust | None = None
    """How it is reached; None: as the proxy's default says."""
    speaks_tls: bool = False
    """Its source says so: it is never asked without, whatever the default."""
    name: str = field(init=False, compare=False)
    """``host:port``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", format_address((self.host, self.port)))


@dataclass(slots=True, eq=False)
class Node:
    """A node with what is known about it."""

    wish: NodeWish
    kinds: frozenset[Kind] = frozenset()
    """Empty until it was found out."""
    certain: bool = False
    """It has answered a request of this kind, or its source named the kind: no further guess is made."""
    refused: str | None = None
    """Why nothing is ever sent to it."""
    server_view: dict[str, object] | None = None
    """Its last answer to ``GET /v1/server``."""
    proxies: frozenset[str] = frozenset()
    """Ids of the proxies that this node is, or has behind it."""
    trust: Trust = field(default_factory=Trust)
    """How it is reached."""
    session: "tuple[ssl.SSLContext, ssl.SSLSession] | None" = None
    """What its next TLS connection resumes."""
    authorization: bytes = b""
    """The header line with this proxy's token for it."""
    right_in_row: int = 0
    """Answers of its that were checked and right since the last wrong one."""
    last_frame: bytes = b""
    """A request that it has answered: asked again, it tells whether a silent node works once more."""
    idle: "deque[Link]" = field(default_factory=deque)
    open: "set[Link]" = field(default_factory=set)
    answered: int = 0
    failed: int = 0
    failed_counted: int = 0
    """Of `failed`, those that the tallies know."""
    addresses: tuple[str, ...] = ()
    """What its name was found to stand for."""
    look_up_at: float = 0.0
    """Loop seconds from which on its name is looked up again."""
    looking_up: "asyncio.Future[tuple[str, ...]] | None" = None
    trouble: str | None = None
    """What was last wrong with it, told once until it is well again."""
    name: str = field(init=False)
    """``host:port``, kept because every request asks for it."""
    itself: frozenset[str] = field(init=False)
    """The name alone, as the set of nodes that a request has tried grows by it."""

    def __post_init__(self) -> None:
        self.name = self.wish.name
        self.itself = frozenset({self.name})

    def close_idle(self, older_than: float | None = None) -> None:
        """Close connections that wait, or only those idle since before ``older_than`` (loop seconds)."""
        while self.idle and (older_than is None or self.idle[0].idle_since < older_than):
            self.idle.popleft().close()


class Directory:
    """All nodes; tells who listens whenever they change."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._wishes: dict[str, dict[str, NodeWish]] = {}
        self.adjust: Callable[[dict[str, NodeWish]], dict[str, NodeWish]] = lambda wanted: wanted
        """Has the last word on what the sources want, by name."""
        self.nodes: dict[str, Node] = {}
        self.changed = changed
        self.default_trust = Trust()
        self.removed: Callable[[Node], None] = lambda node: None

    def replace(self, source: str, wishes: Iterable[NodeWish]) -> None:
        """Take everything that ``source`` names now."""
        self._wishes[source] = {wish.name: wish for wish in wishes}
        wanted: dict[str, NodeWish] = {}
        for named in self._wishes.values():
            wanted.update(named)
        wanted = self.adjust(wanted)
        for name in [name for name in self.nodes if name not in wanted]:
            gone = self.nodes.pop(name)
            gone.close_idle()
            self.removed(gone)
        for name, wish in wanted.items():
            self._want(name, wish)
        self.changed()

    def _want(self, name: str, wish: NodeWish) -> None:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(wish)
        node.wish = wish
        trust = wish.trust or self.default_trust
        trust = replace(trust, tls=True) if wish.speaks_tls else trust
        if trust != node.trust:
            node.trust, node.session, node.authorization = trust, None, b""
            node.close_idle()
        if wish.kind is not None:
            node.kinds, node.certain = frozenset({wish.kind}), True

    def wishes_for(self, name: str) -> dict[str, NodeWish]:
        """Return what each source that names a node wants of it."""
        return {source: named[name] for source, named in self._wishes.items() if name in named}

    def sources(self, name: str) -> tuple[str, ...]:
        """Return the sources that name a node: arguments, file, feed, command."""
        return tuple(self.wishes_for(name))

    def of_kind(self, kind: Kind) -> list[Node]:
        """Return the nodes that take requests of ``kind``."""
        return [node for node in self.nodes.values() if kind in node.kinds and node.refused is None]

    def may_carry(self, kind: Kind) -> bool:
        """Tell whether some node takes ``kind``, or may turn out to."""
        return any(
            node.refused is None and (kind in node.kinds or not node.kinds) for node in self.nodes.values()
        )
