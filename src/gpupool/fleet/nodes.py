"""Nodes: the machines of the pool.

``joining -> verifying -> ready <-> unreachable``; locked and draining lie on top, set by a person. A node that
flaps keeps its devices and its history: unreachable is a state, never a deletion. Only a person removes a node; its
record then stays for the history of its placements, while its name is free for another machine.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpupool.fleet.machines import StateMachine


class NodeState(StrEnum):
    """Where a node stands."""

    JOINING = "joining"
    """Its key is known; its first full inventory is not in yet."""
    VERIFYING = "verifying"
    """Its inventory is in; its devices are being proved."""
    READY = "ready"
    UNREACHABLE = "unreachable"
    """It has been silent longer than the limit, or control has restarted and not heard of it yet."""
    REMOVED = "removed"
    """A person has taken it out of the pool: its key is refused."""


_S = NodeState
NODE_MACHINE: Final = StateMachine(
    "node",
    {
        _S.JOINING: frozenset({_S.VERIFYING, _S.UNREACHABLE, _S.REMOVED}),
        _S.VERIFYING: frozenset({_S.READY, _S.UNREACHABLE, _S.REMOVED}),
        _S.READY: frozenset({_S.UNREACHABLE, _S.VERIFYING, _S.REMOVED}),
        _S.UNREACHABLE: frozenset({_S.VERIFYING, _S.READY, _S.JOINING, _S.REMOVED}),
        _S.REMOVED: frozenset(),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the pool."""

    id: str
    name: str
    """Chosen by the operator, unique; shown everywhere."""
    public_key: str
    """Ed25519, base64 of 32 bytes; every request of the agent is signed with the private half."""
    address: str
    """Host name or IP under which gateway and proxy reach the node's endpoints."""
    state: NodeState = NodeState.JOINING
    locked: bool = False
    """Nothing new is placed here."""
    draining: bool = False
    """Nothing new is placed here, and what runs is being moved away."""
    hourly_usd: float | None = None
    """What the machine costs its owner per hour; None when not told."""
    runtimes: tuple[str, ...] = ("process",)
    """How it can run workloads: process, container, kubernetes."""
    session: str | None = None
    """Names the agent's link since its last full inventory; None until one has come in this run of control."""
    boot_id: str = ""
    joined_at: datetime
    seen_at: datetime
    region: str | None = None
    """Where it stands, in the operator's words."""
    short_ref: str | None = None
    """GPU model that the operator announced; its devices tell what it has."""
    pinned: frozenset[str] = frozenset()
    """Fields that a person has set (``name``, ``hourly_usd``): the agent's own word on them no longer counts."""
    removed_at: datetime | None = None

    @property
    def removed(self) -> bool:
        """Whether a person has taken it out of the pool."""
        return self.state is NodeState.REMOVED

    def moved(self, to: NodeState) -> "Node":
        """Return the node in state ``to``; raise ImpossibleMoveError where the machine refuses."""
        NODE_MACHINE.check(self.state, to, self.name)
        return replace(self, state=to)

    @property
    def takes_work(self) -> bool:
        """Whether new placements may go here."""
        return self.state is NodeState.READY and not self.locked and not self.draining
