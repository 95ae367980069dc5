"""The store port: where the pool's state is kept.

All changes happen inside ``write()``: one serialisable transaction that commits when its block ends without an
error and leaves nothing behind otherwise. No transaction is held across a network wait. ``put_*`` inserts or
replaces by id and refuses moves that the state machines refuse, so a stale writer cannot resurrect the dead.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from gpupool.fleet.alarms import Alarm, Key, Silence
from gpupool.fleet.api_tokens import ApiToken
from gpupool.fleet.claims import Claim
from gpupool.fleet.devices import Device
from gpupool.fleet.events import Event
from gpupool.fleet.hotkeys import OperatorHotkey
from gpupool.fleet.jobs import Job
from gpupool.fleet.join_tokens import JoinToken
from gpupool.fleet.nodes import Node
from gpupool.fleet.placements import Placement
from gpupool.fleet.workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedCommand:
    """An order for a node, kept until the node acknowledges it."""

    node_id: str
    seq: int
    """Per node, from 1, without gaps; never reused."""
    kind: str
    payload: Mapping[str, Any]
    """JSON-ready."""


@dataclass(slots=True)
class Written:
    """What a transaction has put so far, by id, as it is read once the transaction has committed."""

    nodes: dict[str, Node] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    """Final ones have given their claims back."""
    claims: list[Claim] = field(default_factory=list)


class Reader(Protocol):
    """A consistent view of the state."""

    async def node(self, node_id: str) -> Node | None:
        """Return a node by id."""
        ...

    async def node_by_key(self, public_key: str) -> Node | None:
        """Return the node with this public key; a removed one only where no other has it, and then the latest."""
        ...

    async def node_by_name(self, name: str) -> Node | None:
        """Return the node of that name that is not removed."""
        ...

    async def node_count(self) -> int:
        """Return how many nodes are part of the pool."""
        ...

    async def nodes(self, *, removed: bool = False) -> Sequence[Node]:
        """Return the nodes, oldest first; with ``removed`` also those that are no longer part of the pool."""
        ...

    async def some_nodes(self, node_ids: Collection[str]) -> Mapping[str, Node]:
        """Return those of these nodes that are known, by id."""
        ...

    async def device(self, device_id: str) -> Device | None:
        """Return a device by id."""
        ...

    async def devices_on(self, node_ids: Collection[str]) -> Sequence[Device]:
        """Return the devices, absent ones included, of these nodes."""
        ...

    async def live_on(self, node_ids: Collection[str]) -> Sequence[Placement]:
        """Return the live placements on these nodes."""
        ...

    async def with_commands(self, node_ids: Collection[str] | None = None) -> frozenset[str]:
        """Return those of these nodes, or of all, that have unacknowledged commands."""
        ...

    async def join_token(self, digest: str) -> JoinToken | None:
        """Return the join token with this digest."""
        ...

    async def join_tokens(self) -> Sequence[JoinToken]:
        """Return the join tokens that are not forgotten, oldest first."""
        ...

    async def api_token(self, digest: str) -> ApiToken | None:
        """Return the API token with this digest."""
        ...

    async def api_tokens(self) -> Sequence[ApiToken]:
        """Return the API tokens, revoked ones too, oldest first."""
        ...

    async def hotkey(self, address: str) -> OperatorHotkey | None:
        """Return the hotkey of this address."""
        ...

    async def hotkeys(self) -> Sequence[OperatorHotkey]:
        """Return the hotkeys that may ask control, by name."""
        ...

    async def devices(self, node_id: str | None = None) -> Sequence[Device]:
        """Return devices (absent ones included) of one node or of all, by node and index."""
        ...

    async def workload(self, workload_id: str) -> Workload | None:
        """Return a workload by id, deleted or not."""
        ...

    async def workload_by_name(self, name: str) -> Workload | None:
        """Return the workload of that name that is not deleted."""
        ...

    async def workloads(self, *, deleted: bool = False) -> Sequence[Workload]:
        """Return workloads, oldest first; with ``deleted`` also those nobody wants any more."""
        ...

    async def placement(self, placement_id: str) -> Placement | None:
        """Return a placement by id."""
        ...

    async def placements(
        self,
        *,
        node_id: str | None = None,
        workload_id: str | None = None,
        live: bool | None = None,
        limit: int = 1000,
    ) -> Sequence[Placement]:
        """Return placements, newest first; ``live`` keeps only the live (True) or the final (False)."""
        ...

    async def claims(
        self, *, device_id: str | None = None, placement_id: str | None = None
    ) -> Sequence[Claim]:
        """Return the claims held now."""
        ...

    async def job(self, job_id: str) -> Job | None:
        """Return a job by id."""
        ...

    async def jobs(self, *, workload_id: str | None = None) -> Sequence[Job]:
        """Return jobs, newest first."""
        ...

    async def events(
        self,
        after: int = 0,
        limit: int = 100,
        subject: str | None = None,
        *,
        actor: str | None = None,
        asked: bool = False,
        latest: bool = False,
    ) -> Sequence[Event]:
        """Return events with ``seq > after`` in order of ``seq``: the first ones, or with ``latest`` the last ones.

        ``asked``: only those that somebody asked for; ``actor``: only those that this one did, from anywhere.
        """
        ...

    async def last_event_seq(self) -> int:
        """Return the highest ``seq`` given so far; 0 when there is none."""
        ...

    async def alarms(self) -> Sequence[Alarm]:
        """Return the alarms that are not forgotten, by rule and subject."""
        ...

    async def silences(self) -> Sequence[Silence]:
        """Return the silences that are kept, past ones too, oldest first."""
        ...

    async def commands(self, node_id: str, after: int = 0, limit: int = 100) -> Sequence[QueuedCommand]:
        """Return unacknowledged commands with ``seq > after`` in order of ``seq``."""
        ...

    async def check_lease(self, holder: str, epoch: int) -> None:
        """Raise LeaseLostError unless ``holder`` has held the leader's lease since ``epoch``."""
        ...


class Writer(Reader, Protocol):
    """The same view, and changes to it that commit together."""

    written: Written

    async def put_node(self, node: Node) -> None:
        """Insert or replace a node; ConflictError when another node that is not removed has its name or key."""
        ...

    async def note_nodes(self, nodes: Sequence[Node]) -> None:
        """Note state, session, boot and last sign of life of nodes that are known; nothing else of them is kept.

        Raises ImpossibleMoveError, as `put_node` does, before anything is changed.
        """
        ...

    async def put_join_token(self, token: JoinToken) -> None:
        """Insert or replace a join token."""
        ...

    async def put_api_token(self, token: ApiToken) -> None:
        """Insert or replace an API token."""
        ...

    async def put_hotkey(self, hotkey: OperatorHotkey) -> None:
        """Insert or replace a hotkey; ConflictError where another one has its name."""
        ...

    async def drop_hotkey(self, address: str) -> bool:
        """Forget a hotkey; False when there is none of that address."""
        ...

    async def forget_join_tokens(self, before: datetime) -> None:
        """Forget the join tokens that expired before a moment."""
        ...

    async def put_device(self, device: Device) -> None:
        """Insert or replace a device."""
        ...

    async def put_workload(self, workload: Workload) -> None:
        """Insert or replace a workload; ConflictError when another one, not deleted, has its name."""
        ...

    async def put_placement(self, placement: Placement) -> None:
        """Insert or replace a placement; a final one gives its claims back in the same transaction."""
        ...

    async def put_job(self, job: Job) -> None:
        """Insert or replace a job."""
        ...

    async def claim(self, claim: Claim) -> None:
        """Take a claim by one conditional insert; ClaimRefusedError when the device refuses it (see fleet.claims)."""
        ...

    async def put_alarm(self, alarm: Alarm) -> None:
        """Insert or replace an alarm."""
        ...

    async def forget_alarm(self, key: Key) -> None:
        """Forget an alarm, if there is one."""
        ...

    async def put_silence(self, silence: Silence) -> None:
        """Insert or replace a silence."""
        ...

    async def drop_silence(self, silence_id: str) -> bool:
        """Remove a silence; False when there is none."""
        ...

    async def emit(self, event: Event) -> int:
        """Append an event to the outbox and return its ``seq``."""
        ...

    async def emit_all(self, events: Sequence[Event]) -> int:
        """Append events to the outbox in their order and return the highest ``seq``; 0 where there are none."""
        ...

    async def add_command(self, node_id: str, kind: str, payload: Mapping[str, Any]) -> int:
        """Queue a command for a node and return its ``seq``."""
        ...

    async def acknowledge(self, node_id: str, seq: int) -> None:
        """Forget the node's commands up to and including ``seq``."""
        ...

    async def first_time(self, scope: str, key: str) -> bool:
        """Remember ``key`` in ``scope`` (a node's report ids); False when it was already there."""
        ...

    async def first_times(self, keys: Mapping[str, str]) -> frozenset[str]:
        """Remember one key in each of some scopes, and return the scopes where it was not there yet."""
        ...

    async def seize_lease(self, holder: str) -> int:
        """Take the leader's lease, whoever holds it, and return its epoch; for a control that is known to be alone."""
        ...


class Store(Protocol):
    """Where the pool's state is kept. Errors of the database end here, as StorageError."""

    def read(self) -> AbstractAsyncContextManager[Reader]:
        """Open a consistent view."""
        ...

    def write(self) -> AbstractAsyncContextManager[Writer]:
        """Open a transaction; writers come one after another."""
        ...

    async def close(self) -> None:
        """Give back every connection."""
        ...
