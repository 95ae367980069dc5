"""Changing the state inside one write transaction.

Every ``put_*`` looks at the stored row first: a writer that decided on an old view cannot undo what others did
since. What a person or a program can cause is refused with the domain's own errors; see `store.faults` for the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from sqlalchemy import Executable, bindparam, delete, insert, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from gpupool.core.errors import (
    ConflictError,
    ImpossibleMoveError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from gpupool.fleet.alarms import Alarm, Key, Silence
from gpupool.fleet.api_tokens import ApiToken
from gpupool.fleet.claims import Claim, ClaimRefusedError, refusal
from gpupool.fleet.devices import Device
from gpupool.fleet.events import Event
from gpupool.fleet.hotkeys import OperatorHotkey
from gpupool.fleet.jobs import JOB_MACHINE, Job
from gpupool.fleet.join_tokens import JoinToken
from gpupool.fleet.nodes import NODE_MACHINE, Node
from gpupool.fleet.placements import PLACEMENT_MACHINE, Placement
from gpupool.fleet.ports.store import Written
from gpupool.fleet.workloads import Workload
from gpupool.store.bulk import (
    EMIT_ALL,
    LAST_PLACES,
    NOTE_NODE,
    REMEMBER,
    SEEN,
    event_row,
    note_of,
    pair,
    parts,
)
from gpupool.store.claiming import TAKE
from gpupool.store.codecs import (
    AnyRow,
    encode_alarm,
    encode_device,
    encode_job,
    encode_node,
    encode_placement,
    encode_workload,
)
from gpupool.store.faults import translated
from gpupool.store.leasing import DROP_LEASE, LEADER, LEASE, MAKE_LEASE, decode_lease
from gpupool.store.sealed_env import Sealing
from gpupool.store.sql_reader import SqlReader, padded
from gpupool.store.tables import (
    ALARMS,
    CLAIMS,
    COMMANDS,
    EVENTS,
    HOTKEYS,
    JOIN_TOKENS,
    NODES,
    SEEN_KEYS,
    SILENCES,
)
from gpupool.store.upserts import upserts

T = TypeVar("T")
KEPT_KEYS: Final = 10_000
"""Keys that `first_time` remembers per scope; the oldest are forgotten first."""

_RELEASE: Final = delete(CLAIMS).where(CLAIMS.c.placement_id == bindparam("placement"))
_EMIT: Final = insert(EVENTS).returning(EVENTS.c.seq)
_NEXT_COMMAND: Final = (
    update(NODES)
    .where(NODES.c.id == bindparam("node"))
    .values(command_seq=NODES.c.command_seq + 1)
    .returning(NODES.c.command_seq)
)
_ADD_COMMAND: Final = insert(COMMANDS)
_ACKNOWLEDGE: Final = delete(COMMANDS).where(
    COMMANDS.c.node_id == bindparam("node"), COMMANDS.c.seq <= bindparam("up_to")
)
_FORGET_JOIN_TOKENS: Final = delete(JOIN_TOKENS).where(JOIN_TOKENS.c.expires_at < bindparam("before"))
_FORGET_ALARM: Final = delete(ALARMS).where(
    ALARMS.c.rule == bindparam("of"), ALARMS.c.subject == bindparam("about")
)
_DROP_HOTKEY: Final = delete(HOTKEYS).where(HOTKEYS.c.address == bindparam("of"))
_DROP_SILENCE: Final = delete(SILENCES).where(SILENCES.c.id == bindparam("of"))
_PRUNE: Final = delete(SEEN_KEYS).where(
    SEEN_KEYS.c.scope == bindparam("of"), SEEN_KEYS.c.position <= bindparam("up_to")
)


class SqlWriter(SqlReader):
    """`fleet.ports.store.Writer` over one connection with an open write transaction."""

    def __init__(self, connection: AsyncConnection, sealing: Sealing) -> None:
        super().__init__(connection, sealing)
        dialect = connection.dialect.name
        self._upserts = upserts(dialect)
        self._refusal_ends_all = dialect == "postgresql"
        self._broken = False
        self.written = Written()

    async def _execute(
        self, statement: Executable, parameters: Mapping[str, Any], conflict: str | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Run a change; ``conflict`` is said where it breaks a rule of the schema, and the transaction goes on."""
        with translated():
            try:
                if conflict is None or not self._refusal_ends_all:
                    return await self._connection.execute(statement, parameters)
                async with self._connection.begin_nested():
                    return await self._connection.execute(statement, parameters)
            except IntegrityError as error:
                if conflict is None:
                    self._broken = True
                    raise
                raise ConflictError(conflict) from error
            except SQLAlchemyError:
                self._broken = True
                raise

    async def _all(
        self,
        decode: Callable[[AnyRow], T],
        statement: Executable,
        parameters: Mapping[str, Any] | None = None,
    ) -> list[T]:
        try:
            return await super()._all(decode, statement, parameters)
        except StorageError:
            self._broken = True
            raise

    def check_unbroken(self) -> None:
        """Raise StorageError where a statement has failed: PostgreSQL would keep nothing and call it a commit."""
        if self._broken:
            raise StorageError("A statement of this transaction has failed, so nothing of it is kept.")

    async def put_node(self, node: Node) -> None:
        """Insert or replace a node; ConflictError when another node that is not removed has its name or key."""
        stored = await self.node(node.id)
        if stored is not None:
            NODE_MACHINE.check(stored.state, node.state, node.name)
        conflict = f"Another node has the name {node.name} or its key."
        await self._execute(self._upserts.put_node, encode_node(node), conflict)
        self.written.nodes[node.id] = node

    async def note_nodes(self, nodes: Sequence[Node]) -> None:
        """Note state, session, boot and last sign of life of nodes that are known; nothing else of them is kept."""
        for part in parts(nodes):
            stored = await self.some_nodes([node.id for node in part])
            noted = [_noted(stored[node.id], node) for node in part if node.id in stored]
            await self._execute_many(NOTE_NODE, [note_of(node) for node in noted])
            self.written.nodes |= {node.id: node for node in noted}

    async def put_join_token(self, token: JoinToken) -> None:
        """Insert or replace a join token."""
        conflict = f"Another join token has the digest of {token.id}."
        await self._execute(self._upserts.put_join_token, asdict(token), conflict)

    async def put_api_token(self, token: ApiToken) -> None:
        """Insert or replace an API token."""
        conflict = f"Another API token has the digest of {token.id}."
        await self._execute(self._upserts.put_api_token, asdict(token) | {"role": token.role.value}, conflict)

    async def put_hotkey(self, hotkey: OperatorHotkey) -> None:
        """Insert or replace a hotkey; ConflictError where another one has its name."""
        conflict = f"Another hotkey is called {hotkey.name}."
        await self._execute(self._upserts.put_hotkey, asdict(hotkey) | {"role": hotkey.role.value}, conflict)

    async def drop_hotkey(self, address: str) -> bool:
        """Forget a hotkey; False when there is none of that address."""
        return bool((await self._execute(_DROP_HOTKEY, {"of": address})).rowcount)

    async def forget_join_tokens(self, before: datetime) -> None:
        """Forget the join tokens that expired before a moment."""
        await self._execute(_FORGET_JOIN_TOKENS, {"before": before})

    async def put_device(self, device: Device) -> None:
        """Insert or replace a device; ConflictError when its node is not known."""
        conflict = f"The device {device.id} belongs to a node that is not known: {device.node_id}."
        await self._execute(self._upserts.put_device, encode_device(device), conflict)
        self.written.devices[device.id] = device

    async def put_workload(self, workload: Workload) -> None:
        """Insert or replace a workload; ConflictError when another one, not deleted, has its name.

        What was deleted stays so (ImpossibleMoveError), and an older version does not replace a newer one
        (ConflictError).
        """
        stored = await self.workload(workload.id)
        if stored is not None and stored.deleted and not workload.deleted:
            raise ImpossibleMoveError(f"The workload {stored.name} is deleted and stays so.")
        if stored is not None and workload.version < stored.version:
            raise ConflictError(f"The workload {stored.name} has moved on to version {stored.version}.")
        conflict = f"Another workload has the name {workload.name}."
        kept = self._sealing.close_workload(workload)
        await self._execute(self._upserts.put_workload, encode_workload(kept), conflict)
        self.written.workloads[workload.id] = self._sealing.open_workload(kept)

    async def put_placement(self, placement: Placement) -> None:
        """Insert or replace a placement; a final one gives its claims back in the same transaction."""
        stored = await self.placement(placement.id)
        if stored is not None:
            PLACEMENT_MACHINE.check(stored.state, placement.state, placement.id)
        conflict = f"The workload or the node of the placement {placement.id} is not known."
        await self._execute(self._upserts.put_placement, encode_placement(placement), conflict)
        self.written.placements[placement.id] = placement
        if stored is not None and not placement.live:
            await self._execute(_RELEASE, {"placement": placement.id})

    async def put_job(self, job: Job) -> None:
        """Insert or replace a job."""
        stored = await self.job(job.id)
        if stored is not None:
            JOB_MACHINE.check(stored.state, job.state, job.id)
        conflict = f"The workload or the placement of the job {job.id} is not known."
        await self._execute(self._upserts.put_job, encode_job(job), conflict)

    async def claim(self, claim: Claim) -> None:
        """Take a claim by one conditional insert.

        Raises ClaimRefusedError when the device refuses it (see `fleet.claims`), NotFoundError for a device or
        placement that is not known, ConflictError for a final placement or a device of another node.
        """
        if claim.mib < 0:
            raise InvalidInputError(f"A claim of {claim.mib} MiB is not possible.")
        parameters = {
            "placement_id": claim.placement_id,
            "device_id": claim.device_id,
            "mib": claim.mib,
            "priority": claim.priority,
        }
        taken = await self._execute(TAKE[claim.mode], parameters)
        if taken.rowcount == 0:
            raise await self._why_refused(claim)
        self.written.claims.append(claim)

    async def _why_refused(self, claim: Claim) -> ConflictError | NotFoundError:
        device = await self.device(claim.device_id)
        placement = await self.placement(claim.placement_id)
        if device is None:
            return NotFoundError(f"There is no device {claim.device_id}.")
        if placement is None:
            return NotFoundError(f"There is no placement {claim.placement_id}.")
        if not placement.live:
            return ConflictError(
                f"The placement {placement.id} is {placement.state.value} and takes no claims."
            )
        if device.node_id != placement.node_id:
            return ConflictError(
                f"The device {device.id} is not of the placement's node {placement.node_id}."
            )
        held = await self.claims(device_id=device.id)
        if any(own.placement_id == placement.id for own in held):
            return ClaimRefusedError(f"The placement {placement.id} holds the device {device.id} already.")
        reason = refusal(device, held, claim.mode, claim.mib)
        return ClaimRefusedError(f"The device {device.id} refuses the claim: {reason}.")

    async def put_alarm(self, alarm: Alarm) -> None:
        """Insert or replace an alarm."""
        await self._execute(self._upserts.put_alarm, encode_alarm(alarm))

    async def forget_alarm(self, key: Key) -> None:
        """Forget an alarm, if there is one."""
        await self._execute(_FORGET_ALARM, {"of": key[0], "about": key[1]})

    async def put_silence(self, silence: Silence) -> None:
        """Insert or replace a silence."""
        await self._execute(self._upserts.put_silence, asdict(silence))

    async def drop_silence(self, silence_id: str) -> bool:
        """Remove a silence; False when there is none."""
        return bool((await self._execute(_DROP_SILENCE, {"of": silence_id})).rowcount)

    async def emit(self, event: Event) -> int:
        """Append an event to the outbox and return its ``seq``."""
        return int((await self._execute(_EMIT, event_row(event))).scalar_one())

    async def emit_all(self, events: Sequence[Event]) -> int:
        """Append events to the outbox in their order and return the highest ``seq``; 0 where there are none."""
        last = 0
        for part in parts(events):
            last = max(last, *(await self._given(EMIT_ALL, [event_row(event) for event in part])))
        return last

    async def add_command(self, node_id: str, kind: str, payload: Mapping[str, Any]) -> int:
        """Queue a command for a node and return its ``seq``; NotFoundError when there is no such node."""
        seq = (await self._execute(_NEXT_COMMAND, {"node": node_id})).scalar_one_or_none()
        if seq is None:
            raise NotFoundError(f"There is no node {node_id}.")
        kept = self._sealing.close_payload(payload)
        parameters = {"node_id": node_id, "seq": seq, "kind": kind, "payload": kept}
        await self._execute(_ADD_COMMAND, parameters)
        return int(seq)

    async def acknowledge(self, node_id: str, seq: int) -> None:
        """Forget the node's commands up to and including ``seq``."""
        await self._execute(_ACKNOWLEDGE, {"node": node_id, "up_to": seq})

    async def first_time(self, scope: str, key: str) -> bool:
        """Remember ``key`` in ``scope``; False when it is among the last `KEPT_KEYS` of that scope already."""
        position = (
            await self._execute(self._upserts.remember, {"scope": scope, "key": key})
        ).scalar_one_or_none()
        if position is None:
            return False
        if position > KEPT_KEYS:
            await self._execute(_PRUNE, {"of": scope, "up_to": position - KEPT_KEYS})
        return True

    async def first_times(self, keys: Mapping[str, str]) -> frozenset[str]:
        """Remember one key in each of some scopes, and return the scopes where it was not there yet."""
        new: set[str] = set()
        for part in parts(list(keys)):
            scopes = padded(part)
            known = await self._all(pair, SEEN, {"scopes": scopes, "keys": [keys[scope] for scope in scopes]})
            places = dict(await self._all(pair, LAST_PLACES, {"scopes": scopes}))
            fresh = [scope for scope in part if (scope, keys[scope]) not in set(known)]
            await self._execute_many(
                REMEMBER,
                [
                    {"scope": scope, "key": keys[scope], "position": places.get(scope, 0) + 1}
                    for scope in fresh
                ],
            )
            for scope in fresh:
                if places.get(scope, 0) >= KEPT_KEYS:
                    await self._execute(_PRUNE, {"of": scope, "up_to": places[scope] + 1 - KEPT_KEYS})
            new.update(fresh)
        return frozenset(new)

    async def seize_lease(self, holder: str) -> int:
        """Take the leader's lease, whoever holds it, and return its epoch."""
        held = await self._one(decode_lease, LEASE, {})
        epoch = (held[1] if held else 0) + 1
        await self._execute(DROP_LEASE, {})
        lease = {"name": LEADER, "holder": holder, "epoch": epoch, "until": 0.0}
        await self._execute(MAKE_LEASE, lease)
        return epoch

    async def _given(self, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Run a change once for each row, in one go, and return what each gives."""
        with translated():
            try:
                return (await self._connection.execute(statement, list(rows))).scalars().all()
            except SQLAlchemyError:
                self._broken = True
                raise

    async def _execute_many(self, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run a change that nothing can refuse once for each row, in one go; without rows, nothing."""
        if not rows:
            return
        with translated():
            try:
                await self._connection.execute(statement, list(rows))
            except SQLAlchemyError:
                self._broken = True
                raise


def _noted(stored: Node, node: Node) -> Node:
    """Return the stored node with what is noted of it; raise ImpossibleMoveError where its machine refuses."""
    NODE_MACHINE.check(stored.state, node.state, node.name)
    return replace(stored, state=node.state, session=node.session, boot_id=node.boot_id, seen_at=node.seen_at)
