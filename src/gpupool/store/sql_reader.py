"""Reading through one connection, whose open transaction makes it a consistent view.

Statements are built once, when the module is loaded: building costs more than running the small ones.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from sqlalchemy import Executable, Select, String, bindparam, cast, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gpupool.core.sealing import PREFIX
from gpupool.fleet.alarms import Alarm, Silence
from gpupool.fleet.api_tokens import ApiToken
from gpupool.fleet.claims import Claim
from gpupool.fleet.devices import Device
from gpupool.fleet.events import Event
from gpupool.fleet.hotkeys import OperatorHotkey
from gpupool.fleet.jobs import Job
from gpupool.fleet.join_tokens import JoinToken
from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.placements import Placement
from gpupool.fleet.ports.store import QueuedCommand
from gpupool.fleet.workloads import Workload
from gpupool.store.codecs import (
    AnyRow,
    decode_alarm,
    decode_api_token,
    decode_claim,
    decode_command,
    decode_device,
    decode_event,
    decode_hotkey,
    decode_id,
    decode_job,
    decode_join_token,
    decode_node,
    decode_number,
    decode_placement,
    decode_silence,
    decode_workload,
    readable,
)
from gpupool.store.faults import translated
from gpupool.store.leasing import LEASE, check, decode_lease
from gpupool.store.sealed_env import Sealing
from gpupool.store.tables import (
    ALARMS,
    API_TOKENS,
    CLAIMS,
    COMMANDS,
    DEVICES,
    EVENTS,
    HOTKEYS,
    JOBS,
    JOIN_TOKENS,
    NODES,
    PLACEMENTS,
    SILENCES,
    WORKLOADS,
)

T = TypeVar("T")
MOST: Final = 2**31 - 1
"""The largest number that an integer column of PostgreSQL takes, and can be compared with."""
_PART: Final = 500
"""Rows decoded in one go; a fleet's worth of them would hold up the event loop."""

_ALL_NODES: Final = select(NODES).order_by(NODES.c.joined_at, NODES.c.id)
_NODES: Final = _ALL_NODES.where(NODES.c.state != NodeState.REMOVED.value)
_NODE: Final = select(NODES).where(NODES.c.id == bindparam("id"))
_LIVING: Final = NODES.c.state != literal_column(f"'{NodeState.REMOVED.value}'")
"""Said as their indexes say it: a parameter would keep SQLite from using one."""
_NODE_BY_NAME: Final = select(NODES).where(NODES.c.name == bindparam("name"), _LIVING)
_NODE_COUNT: Final = select(func.count(NODES.c.name)).where(_LIVING)
_NODES_BY_KEY: Final = select(NODES).where(NODES.c.public_key == bindparam("public_key"))
_JOIN_TOKEN: Final = select(JOIN_TOKENS).where(JOIN_TOKENS.c.digest == bindparam("digest"))
_API_TOKEN: Final = select(API_TOKENS).where(API_TOKENS.c.digest == bindparam("digest"))
_API_TOKENS: Final = select(API_TOKENS).order_by(API_TOKENS.c.created_at, API_TOKENS.c.id)
_HOTKEY: Final = select(HOTKEYS).where(HOTKEYS.c.address == bindparam("address"))
_HOTKEYS: Final = select(HOTKEYS).order_by(HOTKEYS.c.name)
_JOIN_TOKENS: Final = select(JOIN_TOKENS).order_by(JOIN_TOKENS.c.created_at, JOIN_TOKENS.c.id)
_SOME_NODES: Final = select(NODES).where(NODES.c.id.in_(bindparam("ids", expanding=True)))
_DEVICE: Final = select(DEVICES).where(DEVICES.c.id == bindparam("id"))
_DEVICES_ON: Final = select(DEVICES).where(DEVICES.c.node_id.in_(bindparam("ids", expanding=True)))
_LIVE_ON: Final = select(PLACEMENTS).where(
    PLACEMENTS.c.node_id.in_(bindparam("ids", expanding=True)), PLACEMENTS.c.live
)
_ALL_WITH_COMMANDS: Final = select(COMMANDS.c.node_id).distinct()
_WITH_COMMANDS: Final = _ALL_WITH_COMMANDS.where(COMMANDS.c.node_id.in_(bindparam("ids", expanding=True)))
_DEVICES: Final = select(DEVICES).order_by(DEVICES.c.node_id, DEVICES.c.position, DEVICES.c.id)
_DEVICES_OF_NODE: Final = _DEVICES.where(DEVICES.c.node_id == bindparam("node_id"))
_WORKLOAD: Final = select(WORKLOADS).where(WORKLOADS.c.id == bindparam("id"))
_WORKLOAD_BY_NAME: Final = select(WORKLOADS).where(
    WORKLOADS.c.name == bindparam("name"), ~WORKLOADS.c.deleted
)
_ALL_WORKLOADS: Final = select(WORKLOADS).order_by(WORKLOADS.c.created_at, WORKLOADS.c.id)
_LIVING_WORKLOADS: Final = _ALL_WORKLOADS.where(~WORKLOADS.c.deleted)
_SPEC_TEXT: Final = cast(WORKLOADS.c.spec, String)
_CLEAR_WORKLOADS: Final = select(WORKLOADS.c.id).where(
    _SPEC_TEXT.like('%"env": {"%'), ~_SPEC_TEXT.like(f'%"{PREFIX}%')
)
_PLACEMENT: Final = select(PLACEMENTS).where(PLACEMENTS.c.id == bindparam("id"))
_JOB: Final = select(JOBS).where(JOBS.c.id == bindparam("id"))
_JOBS: Final = select(JOBS).order_by(JOBS.c.created_at.desc(), JOBS.c.id.desc())
_JOBS_OF_WORKLOAD: Final = _JOBS.where(JOBS.c.workload_id == bindparam("workload_id"))
_EVENTS: Final = (
    select(EVENTS).where(EVENTS.c.seq > bindparam("after")).limit(bindparam("limit", type_=EVENTS.c.seq.type))
)
_ALARMS: Final = select(ALARMS).order_by(ALARMS.c.rule, ALARMS.c.subject)
_SILENCES: Final = select(SILENCES).order_by(SILENCES.c.id)
_LAST_EVENT: Final = select(func.coalesce(func.max(EVENTS.c.seq), 0))
_COMMANDS: Final = (
    select(COMMANDS)
    .where(COMMANDS.c.node_id == bindparam("node_id"), COMMANDS.c.seq > bindparam("after"))
    .order_by(COMMANDS.c.seq)
    .limit(bindparam("limit", type_=COMMANDS.c.seq.type))
)


def _placements_query(columns: tuple[str, ...]) -> Select[*tuple[Any, ...]]:
    query = select(PLACEMENTS).order_by(PLACEMENTS.c.created_at.desc(), PLACEMENTS.c.id.desc())
    query = query.limit(bindparam("limit", type_=PLACEMENTS.c.port.type))
    return query.where(*(PLACEMENTS.c[name] == bindparam(name) for name in columns))


def _claims_query(columns: tuple[str, ...]) -> Select[*tuple[Any, ...]]:
    query = select(CLAIMS).order_by(CLAIMS.c.device_id, CLAIMS.c.placement_id)
    return query.where(*(CLAIMS.c[name] == bindparam(name) for name in columns))


_FILTERS: Final = ("node_id", "workload_id", "live")
_PLACEMENTS: Final = {
    names: _placements_query(names)
    for names in (
        tuple(name for position, name in enumerate(_FILTERS) if mask >> position & 1)
        for mask in range(2 ** len(_FILTERS))
    )
}
_CLAIMS: Final[dict[tuple[str, ...], Select[*tuple[Any, ...]]]] = {
    names: _claims_query(names)
    for names in ((), ("device_id",), ("placement_id",), ("device_id", "placement_id"))
}


def padded(ids: Collection[str]) -> list[str]:
    """Return the ids, the last one again and again up to a power of two: a database prepares few statements then."""
    listed = list(ids)
    return listed + listed[-1:] * ((1 << max(0, len(listed) - 1).bit_length()) - len(listed))


def given(**filters: object) -> dict[str, object]:
    """Return the filters that were given."""
    return {name: value for name, value in filters.items() if value is not None}


class SqlReader:
    """`fleet.ports.store.Reader` over one connection with an open transaction."""

    def __init__(self, connection: AsyncConnection, sealing: Sealing) -> None:
        self._connection = connection
        self._sealing = sealing

    async def _all(
        self,
        decode: Callable[[AnyRow], T],
        statement: Executable,
        parameters: Mapping[str, Any] | None = None,
    ) -> list[T]:
        with translated(), readable(decode.__name__.removeprefix("decode_")):
            result = await self._connection.execute(statement, parameters)
            found: list[T] = []
            for part in result.partitions(_PART):
                found.extend(decode(row) for row in part)
                if len(part) == _PART:
                    await asyncio.sleep(0)
            return found

    async def _one(
        self, decode: Callable[[AnyRow], T], statement: Executable, parameters: Mapping[str, Any]
    ) -> T | None:
        found = await self._all(decode, statement, parameters)
        return found[0] if found else None

    async def node(self, node_id: str) -> Node | None:
        """Return a node by id."""
        return await self._one(decode_node, _NODE, {"id": node_id})

    async def node_by_key(self, public_key: str) -> Node | None:
        """Return the node with this public key; a removed one only where no other has it, and then the latest."""
        found = await self._all(decode_node, _NODES_BY_KEY, {"public_key": public_key})
        return max(found, key=lambda node: (not node.removed, node.joined_at, node.id), default=None)

    async def node_by_name(self, name: str) -> Node | None:
        """Return the node of that name that is not removed."""
        return await self._one(decode_node, _NODE_BY_NAME, {"name": name})

    async def node_count(self) -> int:
        """Return how many nodes are part of the pool."""
        return (await self._all(decode_number, _NODE_COUNT))[0]

    async def nodes(self, *, removed: bool = False) -> Sequence[Node]:
        """Return the nodes, oldest first; with ``removed`` also those that are no longer part of the pool."""
        return await self._all(decode_node, _ALL_NODES if removed else _NODES)

    async def some_nodes(self, node_ids: Collection[str]) -> Mapping[str, Node]:
        """Return those of these nodes that are known, by id."""
        found = await self._all(decode_node, _SOME_NODES, {"ids": padded(node_ids)})
        return {node.id: node for node in found}

    async def device(self, device_id: str) -> Device | None:
        """Return a device by id."""
        return await self._one(decode_device, _DEVICE, {"id": device_id})

    async def devices_on(self, node_ids: Collection[str]) -> Sequence[Device]:
        """Return the devices, absent ones included, of these nodes."""
        return await self._all(decode_device, _DEVICES_ON, {"ids": padded(node_ids)})

    async def live_on(self, node_ids: Collection[str]) -> Sequence[Placement]:
        """Return the live placements on these nodes."""
        return await self._all(decode_placement, _LIVE_ON, {"ids": padded(node_ids)})

    async def with_commands(self, node_ids: Collection[str] | None = None) -> frozenset[str]:
        """Return those of these nodes, or of all, that have unacknowledged commands."""
        if node_ids is None:
            return frozenset(await self._all(decode_id, _ALL_WITH_COMMANDS))
        return frozenset(await self._all(decode_id, _WITH_COMMANDS, {"ids": padded(node_ids)}))

    async def join_token(self, digest: str) -> JoinToken | None:
        """Return the join token with this digest."""
        return await self._one(decode_join_token, _JOIN_TOKEN, {"digest": digest})

    async def join_tokens(self) -> Sequence[JoinToken]:
        """Return the join tokens that are not forgotten, oldest first."""
        return await self._all(decode_join_token, _JOIN_TOKENS)

    async def api_token(self, digest: str) -> ApiToken | None:
        """Return the API token with this digest."""
        return await self._one(decode_api_token, _API_TOKEN, {"digest": digest})

    async def api_tokens(self) -> Sequence[ApiToken]:
        """Return the API tokens, revoked ones too, oldest first."""
        return await self._all(decode_api_token, _API_TOKENS)

    async def hotkey(self, address: str) -> OperatorHotkey | None:
        """Return the hotkey of this address."""
        return await self._one(decode_hotkey, _HOTKEY, {"address": address})

    async def hotkeys(self) -> Sequence[OperatorHotkey]:
        """Return the hotkeys that may ask control, by name."""
        return await self._all(decode_hotkey, _HOTKEYS)

    async def devices(self, node_id: str | None = None) -> Sequence[Device]:
        """Return devices (absent ones included) of one node or of all, by node and index."""
        if node_id is None:
            return await self._all(decode_device, _DEVICES)
        return await self._all(decode_device, _DEVICES_OF_NODE, {"node_id": node_id})

    async def workload(self, workload_id: str) -> Workload | None:
        """Return a workload by id, deleted or not."""
        found = await self._one(decode_workload, _WORKLOAD, {"id": workload_id})
        return None if found is None else self._sealing.open_workload(found)

    async def workload_by_name(self, name: str) -> Workload | None:
        """Return the workload of that name that is not deleted."""
        found = await self._one(decode_workload, _WORKLOAD_BY_NAME, {"name": name})
        return None if found is None else self._sealing.open_workload(found)

    async def workloads(self, *, deleted: bool = False) -> Sequence[Workload]:
        """Return workloads, oldest first; with ``deleted`` also those nobody wants any more."""
        found = await self._all(decode_workload, _ALL_WORKLOADS if deleted else _LIVING_WORKLOADS)
        return [self._sealing.open_workload(workload) for workload in found]

    async def clear_workloads(self) -> Sequence[str]:
        """Return the ids of workloads, deleted ones too, whose environment is kept in clear."""
        return await self._all(decode_id, _CLEAR_WORKLOADS)

    async def placement(self, placement_id: str) -> Placement | None:
        """Return a placement by id."""
        return await self._one(decode_placement, _PLACEMENT, {"id": placement_id})

    async def placements(
        self,
        *,
        node_id: str | None = None,
        workload_id: str | None = None,
        live: bool | None = None,
        limit: int = 1000,
    ) -> Sequence[Placement]:
        """Return placements, newest first; ``live`` keeps only the live (True) or the final (False)."""
        filters = given(node_id=node_id, workload_id=workload_id, live=live)
        return await self._all(decode_placement, _PLACEMENTS[tuple(filters)], {**filters, "limit": limit})

    async def claims(
        self, *, device_id: str | None = None, placement_id: str | None = None
    ) -> Sequence[Claim]:
        """Return the claims held now, by device."""
        filters = given(device_id=device_id, placement_id=placement_id)
        return await self._all(decode_claim, _CLAIMS[tuple(filters)], filters)

    async def job(self, job_id: str) -> Job | None:
        """Return a job by id."""
        return await self._one(decode_job, _JOB, {"id": job_id})

    async def jobs(self, *, workload_id: str | None = None) -> Sequence[Job]:
        """Return jobs, newest first."""
        if workload_id is None:
            return await self._all(decode_job, _JOBS)
        return await self._all(decode_job, _JOBS_OF_WORKLOAD, {"workload_id": workload_id})

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
        statement = _EVENTS.order_by(EVENTS.c.seq.desc() if latest else EVENTS.c.seq)
        if subject is not None:
            statement = statement.where(EVENTS.c.subject == subject)
        if asked or actor is not None:
            statement = statement.where(EVENTS.c.actor.is_not(None))
        if actor is not None:
            anywhere = EVENTS.c.actor.startswith(f"{actor}@", autoescape=True)
            statement = statement.where((EVENTS.c.actor == actor) | anywhere)
        found = await self._all(decode_event, statement, {"after": min(after, MOST), "limit": limit})
        return found[::-1] if latest else found

    async def last_event_seq(self) -> int:
        """Return the highest ``seq`` given so far; 0 when there is none."""
        return (await self._all(decode_number, _LAST_EVENT))[0]

    async def alarms(self) -> Sequence[Alarm]:
        """Return the alarms that are not forgotten, by rule and subject."""
        return await self._all(decode_alarm, _ALARMS)

    async def silences(self) -> Sequence[Silence]:
        """Return the silences that are kept, past ones too, oldest first."""
        return await self._all(decode_silence, _SILENCES)

    async def commands(self, node_id: str, after: int = 0, limit: int = 100) -> Sequence[QueuedCommand]:
        """Return unacknowledged commands with ``seq > after`` in order of ``seq``."""
        parameters = {"node_id": node_id, "after": min(after, MOST), "limit": limit}
        found = await self._all(decode_command, _COMMANDS, parameters)
        return [replace(item, payload=self._sealing.open_payload(item.payload)) for item in found]

    async def check_lease(self, holder: str, epoch: int) -> None:
        """Raise LeaseLostError unless ``holder`` has held the leader's lease since ``epoch``."""
        check(await self._one(decode_lease, LEASE, {}), holder, epoch)
