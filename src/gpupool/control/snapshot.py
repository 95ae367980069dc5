"""The whole state at one moment, indexed for those who look at it.

Read in one consistent view. Lists, the feed, the reconciler and `why` all work on a snapshot, so they never
disagree about the same revision.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gpupool.fleet.claims import Claim
from gpupool.fleet.devices import Device
from gpupool.fleet.nodes import Node
from gpupool.fleet.placements import Placement
from gpupool.fleet.ports.store import Reader, Written
from gpupool.fleet.workloads import Workload
from gpupool.scheduling.port import Candidate, FleetView

T = TypeVar("T")
_EVERY_LIVE = 1_000_000
RECENT_FINAL = 1000
"""Final placements that a snapshot holds; older ones are found by id only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state at one revision."""

    seq: int
    nodes: Mapping[str, Node]
    """Removed ones included."""
    devices: Mapping[str, Sequence[Device]]
    """By node."""
    workloads: Mapping[str, Workload]
    """Deleted ones included."""
    live: Sequence[Placement]
    """Newest first."""
    placed: Mapping[str, Placement]
    """Live ones by id."""
    final: Sequence[Placement]
    """The latest ones, newest first."""
    claims: Mapping[str, Sequence[Claim]]
    """By placement."""
    leaving: frozenset[str] = frozenset()
    """Nodes whose agents are stopping."""

    def live_of(self, workload_id: str) -> list[Placement]:
        """Return the live placements of a workload, newest first."""
        return [placement for placement in self.live if placement.workload_id == workload_id]

    def live_on(self, node_id: str) -> list[Placement]:
        """Return the live placements on a node, newest first."""
        return [placement for placement in self.live if placement.node_id == node_id]

    def wanted_workloads(self) -> list[Workload]:
        """Return the workloads that are not deleted, oldest first."""
        return [workload for workload in self.workloads.values() if not workload.deleted]

    def claims_on(self, device_id: str) -> list[Claim]:
        """Return what is held of one device."""
        return [claim for claims in self.claims.values() for claim in claims if claim.device_id == device_id]

    def find_workload(self, name_or_id: str) -> Workload | None:
        """Return the workload of that id (deleted or not) or, if not deleted, of that name."""
        found = self.workloads.get(name_or_id)
        if found is not None:
            return found
        return next((workload for workload in self.wanted_workloads() if workload.name == name_or_id), None)

    def members(self) -> list[Node]:
        """Return the nodes that are part of the pool, oldest first."""
        return [node for node in self.nodes.values() if not node.removed]

    def find_node(self, name_or_id: str) -> Node | None:
        """Return the node of that id (removed or not) or, if not removed, of that name."""
        found = self.nodes.get(name_or_id)
        return found or next((node for node in self.members() if node.name == name_or_id), None)

    def after(self, written: Sequence[Written], seq: int, leaving: frozenset[str]) -> "Snapshot":
        """Return the state after some transactions, in the order of their commits."""
        nodes, workloads = dict(self.nodes), dict(self.workloads)
        devices, claims = _Devices(self.devices), dict(self.claims)
        placements: dict[str, Placement] = {}
        for one in written:
            nodes |= one.nodes
            workloads |= one.workloads
            placements |= one.placements
            devices.put(one.devices.values())
            for claim in one.claims:
                held = claims.get(claim.placement_id, ())
                claims[claim.placement_id] = [*(old for old in held if old != claim), claim]
            for placement in one.placements.values():
                if not placement.live:
                    claims.pop(placement.id, None)
        live = _merged(self.live, placements, live=True)
        return Snapshot(
            seq=seq,
            nodes=_ordered(nodes, self.nodes, key=lambda node: (node.joined_at, node.id)),
            devices=devices.by_node,
            workloads=_ordered(
                workloads, self.workloads, key=lambda workload: (workload.created_at, workload.id)
            ),
            live=live,
            placed={placement.id: placement for placement in live} if placements else self.placed,
            final=_merged(self.final, placements, live=False)[:RECENT_FINAL],
            claims=claims,
            leaving=leaving,
        )

    def fleet(self, without: Collection[str] = ()) -> FleetView:
        """Return what a strategy sees, as if the placements ``without`` were gone."""
        # A card may have moved to another machine while a placement of the old one still holds it.
        node_of = {device.id: device.node_id for devices in self.devices.values() for device in devices}
        claims: dict[str, list[Claim]] = defaultdict(list)
        ports: dict[str, set[int]] = defaultdict(set)
        for placement in self.live:
            if placement.id in without:
                continue
            for claim in self.claims.get(placement.id, ()):
                claims[node_of.get(claim.device_id, placement.node_id)].append(claim)
            if placement.port is not None:
                ports[placement.node_id].add(placement.port)
        return FleetView(
            candidates=tuple(
                Candidate(
                    node=replace(node, draining=True) if node.id in self.leaving else node,
                    devices=tuple(self.devices.get(node.id, ())),
                    claims=tuple(claims[node.id]),
                    ports=frozenset(ports[node.id]),
                )
                for node in self.members()
            )
        )


class _Devices:
    """Devices by node, each in the order of its index; one that moves leaves its old node."""

    def __init__(self, before: Mapping[str, Sequence[Device]]) -> None:
        self.by_node = dict(before)
        self._node_of: dict[str, str] | None = None

    def put(self, devices: Collection[Device]) -> None:
        if not devices:
            return
        if self._node_of is None:
            self._node_of = {one.id: one.node_id for some in self.by_node.values() for one in some}
        for device in devices:
            self._drop(device.id)
            here = [*self.by_node.get(device.node_id, ()), device]
            self.by_node[device.node_id] = sorted(here, key=lambda one: (one.index, one.id))
            self._node_of[device.id] = device.node_id

    def _drop(self, device_id: str) -> None:
        old = (self._node_of or {}).get(device_id)
        if old is not None:
            left = [one for one in self.by_node.pop(old, ()) if one.id != device_id]
            if left:
                self.by_node[old] = left


def _ordered(now: dict[str, T], before: Mapping[str, T], key: Callable[[T], Any]) -> Mapping[str, T]:
    """Return the records in the order of ``key``; what was there before is in order already."""
    if len(now) == len(before):
        return now
    return {name: now[name] for name in sorted(now, key=lambda name: key(now[name]))}


def _merged(before: Sequence[Placement], put: Mapping[str, Placement], *, live: bool) -> Sequence[Placement]:
    """Return those of both that are live, or those that are final, newest first."""
    if not put:
        return before
    known = {placement.id for placement in before}
    kept = [put.get(placement.id, placement) for placement in before]
    new = [placement for placement in put.values() if placement.id not in known]
    merged = [placement for placement in [*kept, *new] if placement.live is live]
    if any(placement.live is live for placement in new):
        merged.sort(key=lambda placement: (placement.created_at, placement.id), reverse=True)
    return merged


async def load_snapshot(reader: Reader, leaving: frozenset[str] = frozenset()) -> Snapshot:
    """Read the whole state in one consistent view; ``leaving`` names the nodes whose agents are stopping."""
    devices: dict[str, list[Device]] = defaultdict(list)
    for device in await reader.devices():
        devices[device.node_id].append(device)
    claims: dict[str, list[Claim]] = defaultdict(list)
    for claim in await reader.claims():
        claims[claim.placement_id].append(claim)
    live = await reader.placements(live=True, limit=_EVERY_LIVE)
    return Snapshot(
        seq=await reader.last_event_seq(),
        nodes={node.id: node for node in await reader.nodes(removed=True)},
        devices=devices,
        workloads={workload.id: workload for workload in await reader.workloads(deleted=True)},
        live=live,
        placed={placement.id: placement for placement in live},
        final=await reader.placements(live=False, limit=RECENT_FINAL),
        claims=claims,
        leaving=leaving,
    )
