"""The agents' links as this process sees them: who was heard when, and who listens for commands.

Kept in memory. A heartbeat of a known session touches nothing but this, so ten thousand idle nodes cost the store
nothing. What must survive a restart (commands, sessions) is in the store; what other controls on the same database
have heard is learned from them now and then, as they learn what was heard here.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpupool.contracts.agent_link import Command
from gpupool.control.followers import PREFIX
from gpupool.core.clock import Clock
from gpupool.fleet.nodes import Node
from gpupool.fleet.ports.sharing import Hearing

_MAX_TRANSIENT = 64


class CommandStream:
    """One open command stream: woken when there may be something to send."""

    def __init__(self) -> None:
        self.ended = False
        # Not an event: that keeps a queue of those who wait, and there are ten thousand streams.
        self._reason = False
        self._waiter: asyncio.Future[None] | None = None
        self._transient: list[Command] = []

    def wake(self) -> None:
        """Look for new commands now."""
        self._reason = True
        if self._waiter is not None:
            _let_go(self._waiter)

    def push(self, command: Command) -> None:
        """Send a command that is not kept."""
        # A list, though the oldest go first: an empty one is small, and there are ten thousand.
        self._transient = [*self._transient, command][-_MAX_TRANSIENT:]
        self.wake()

    def end(self) -> None:
        """Close the stream."""
        self.ended = True
        self.wake()

    def take(self) -> list[Command]:
        """Return the commands pushed since the last call."""
        taken, self._transient = self._transient, []
        return taken

    async def woken(self, seconds: float) -> bool:
        """Wait for a reason to look, at most ``seconds``; False when time is up. One waits at a time."""
        loop = asyncio.get_running_loop()
        if not self._reason:
            self._waiter = loop.create_future()
            timer = loop.call_later(seconds, _let_go, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        woken, self._reason = self._reason, False
        return woken


def _let_go(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@dataclass(slots=True)
class Link:
    """One node's link in this run of control."""

    heard: float
    """Monotonic seconds of its last signed request."""
    heard_at: datetime
    session: str | None = None
    """The session whose complete inventory has come; None before it and after the node has left."""
    newest: tuple[str, str] = ("", "")
    """Boot and name of the newest session taken in this run, the node's leaving included."""
    silent: bool = False
    """Recorded as unreachable."""
    leaving: bool = False
    """It ends its placements without having been told to: its agent is stopping."""
    stream: CommandStream | None = None
    idle: bool = False
    """Known to have no command waiting: nobody has queued one since somebody looked."""
    home: str = ""
    """The other control at which it listens for commands; empty where it does so here, or nowhere."""
    disputes: set[str] = field(default_factory=set)
    """Nodes that hold a device which this one showed too."""
    recount: bool = False
    """One of those has spoken since: the next complete report may settle the dispute."""

    @property
    def has_left(self) -> bool:
        """Whether its agent has said good-bye and not come back."""
        return self.session is None and self.newest != ("", "")

    def overtaken(self, boot_id: str, session: str, node: Node | None = None) -> bool:
        """Tell whether a newer session of the same boot has been taken: what this one says is old.

        ``node``: as it is recorded, with the session that another control may have taken.
        """
        taken = [self.newest] if node is None else [self.newest, (node.boot_id, node.session or "")]
        return bool(boot_id) and any(boot_id == boot and session < newest for boot, newest in taken)


class Links:
    """All links, by node id."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._links: dict[str, Link] = {}
        self._disputing: set[str] = set()
        self._fresh: set[str] = set()
        """Heard here since others were told last."""
        self._unlinked: set[str] = set()
        """Listening here no longer, since others were told last."""

    def __len__(self) -> int:
        """Return how many nodes were heard in this run."""
        return len(self._links)

    def get(self, node_id: str) -> Link | None:
        """Return the link of a node heard in this run."""
        return self._links.get(node_id)

    def heard(self, node_id: str) -> Link:
        """Note that the node spoke just now."""
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = Link(self._clock.monotonic(), self._clock.now())
        link.heard, link.heard_at = self._clock.monotonic(), self._clock.now()
        self._fresh.add(node_id)
        return link

    def expect(self, node_id: str) -> None:
        """Note that the node has joined and will speak. Joining again is no sign of life: whoever holds the token can."""
        if node_id not in self._links:
            self.heard(node_id)

    def forget(self, node_id: str) -> None:
        """End the stream of a node that is no longer part of the pool, and all that is known of its link."""
        link = self._links.pop(node_id, None)
        if link is not None and link.stream is not None:
            link.stream.end()

    def leaving(self) -> frozenset[str]:
        """Return the nodes whose agents are stopping: nothing new should go there."""
        return frozenset(node for node, link in self._links.items() if link.leaving)

    def settle_disputes_with(self, node_id: str) -> None:
        """Let the nodes that were refused a device of this one count again, now that it has told what it has."""
        for disputing in self._disputing:
            link = self._links.get(disputing)
            if link is not None:
                link.recount = link.recount or node_id in link.disputes
        self._disputing = {
            name for name in self._disputing if (one := self._links.get(name)) and one.disputes
        }

    def dispute(self, node_id: str, holder: str) -> None:
        """Note that a node has shown a device that ``holder`` holds."""
        self.heard(node_id).disputes.add(holder)
        self._disputing.add(node_id)

    def connected(self, node_id: str) -> bool:
        """Tell whether the node listens for commands, here or at another control."""
        link = self._links.get(node_id)
        return link is not None and (link.stream is not None or bool(link.home))

    def open_stream(self, node_id: str) -> CommandStream:
        """Return a new stream of the node, ending the one it had."""
        link = self.heard(node_id)
        if link.stream is not None:
            link.stream.end()
        link.stream, link.home = CommandStream(), ""
        return link.stream

    def close_stream(self, node_id: str, stream: CommandStream) -> None:
        """Forget a stream that has ended, unless a newer one took its place."""
        link = self._links.get(node_id)
        if link is not None and link.stream is stream:
            link.stream = None
            self._unlinked.add(node_id)

    def wake(self, node_id: str) -> None:
        """Let the node's stream look for new commands."""
        link = self._links.get(node_id)
        if link is not None:
            link.idle = False
            if link.stream is not None:
                link.stream.wake()

    def nothing_waits(self, node_id: str) -> None:
        """Note that the node has no command waiting; to be called in the same step in which that was read."""
        link = self._links.get(node_id)
        if link is not None:
            link.idle = True

    def is_idle(self, node_id: str) -> bool:
        """Tell whether it is known that the node has no command waiting."""
        link = self._links.get(node_id)
        return link is not None and link.idle

    def gone_silent(self, limit: float) -> list[str]:
        """Return the nodes not heard for longer than ``limit`` seconds and not yet recorded as such."""
        now = self._clock.monotonic()
        return [node for node, link in self._links.items() if not link.silent and now - link.heard > limit]

    def excuse(self, moment: float) -> None:
        """Take every node as heard at ``moment`` (monotonic) at the earliest."""
        for link in self._links.values():
            link.heard = max(link.heard, moment)

    def news(self) -> tuple[dict[str, bool], set[str]]:
        """Return whom others are to be told of: heard here (and whether listening), and listening no longer."""
        fresh, self._fresh = self._fresh, set()
        unlinked, self._unlinked = self._unlinked, set()
        here = {node for node, link in self._links.items() if link.stream is not None}
        return {node: node in here for node in fresh}, unlinked - here

    def learn(self, hearings: Mapping[str, Hearing], me: str) -> None:
        """Take in what other controls have heard; ``me`` is this one."""
        now, wall = self._clock.monotonic(), self._clock.now()
        for node_id, hearing in hearings.items():
            if node_id.startswith(PREFIX):
                continue
            link = self._links.get(node_id)
            if hearing.replica == me and link is not None:
                link.home = ""
                continue
            heard = now - max(0.0, hearing.silent)
            if link is None:
                link = self._links[node_id] = Link(heard, wall - timedelta(seconds=now - heard))
            elif heard > link.heard:
                link.heard, link.heard_at = heard, wall - timedelta(seconds=now - heard)
            link.home = hearing.replica if hearing.linked and link.stream is None else ""

    def connected_as(self, node_id: str, session: str) -> None:
        """Note that a session of the node was taken, perhaps elsewhere: any other one is doubtful here."""
        link = self._links.get(node_id)
        if link is not None:
            link.silent = False
            link.leaving = link.leaving and link.session == session
            if link.session != session:
                link.session, link.newest = None, ("", "")

    def recorded(self, node_id: str, *, silent: bool) -> None:
        """Note that the node was recorded as unreachable, or as ready."""
        link = self._links.get(node_id)
        if link is not None:
            link.silent = silent

    def left(self, node_id: str) -> None:
        """Note that the node's agent has said good-bye, perhaps elsewhere."""
        link = self._links.get(node_id)
        if link is not None:
            link.session, link.leaving = None, False
            link.newest = max(link.newest, ("", "left"))

    def is_leaving(self, node_id: str) -> None:
        """Note that the node's agent is stopping; it has told so here or elsewhere."""
        link = self._links.get(node_id) or self.heard(node_id)
        link.leaving = True

    def end_all(self) -> None:
        """End every stream: the process is stopping."""
        for link in self._links.values():
            if link.stream is not None:
                link.stream.end()
