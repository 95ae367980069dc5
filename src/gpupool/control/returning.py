"""Agents that come back with nothing new to tell, and agents that only measured something: cheap, since there are many.

After a restart of control a whole fleet connects at once. What most of it shows is what is recorded already; such
reports are taken together, in one transaction for all that came while the last one was on its way to the disk.
Whatever is news takes the way of `control.reporting`, one by one.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from gpupool.contracts.agent_link import PlacementReport, Report
from gpupool.control.links import Link
from gpupool.core.errors import BusyError
from gpupool.fleet.devices import Device
from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.placements import Placement, PlacementState

if TYPE_CHECKING:
    from gpupool.control.pool import Change, Pool

Of = TypeVar("Of", Device, Placement)
RATE_NEWS: Final = 0.05
"""A measured rate is news when it differs by more than this share."""
MOST_WAITING: Final = 1000
"""Reports that may wait: a few seconds' worth."""
_MOST: Final = 250
_FEW: Final = 8
_GATHER_SECONDS: Final = 0.1
_BACK: Final = frozenset({NodeState.UNREACHABLE, NodeState.VERIFYING, NodeState.READY})


def is_news(placement: Placement | None, seen: PlacementReport) -> bool:
    """Tell whether a node sees anything of a placement that is not recorded of it."""
    if placement is None or not placement.live or placement.state is not seen.state:
        return True
    if placement.state is PlacementState.DRAINING or seen.restarts > placement.restarts:
        return True
    if seen.port not in {None, placement.port}:
        return True
    return rate_is_news(placement.rate, seen.rate)


def rate_is_news(old: float | None, new: float | None) -> bool:
    """Tell whether a rate has moved so far that those who weigh by it have to hear of it."""
    return new is not None and (old is None or abs(new - old) > RATE_NEWS * old)


async def only_measured(pool: "Pool", node_id: str, link: Link, report: Report) -> bool:
    """Tell whether a report of a known session holds nothing but figures that are near those recorded."""
    if report.complete or report.leaving or report.devices is not None or report.acknowledged is not None:
        return False
    if link.session != report.session or link.silent:
        return False
    placed = (await pool.snapshot()).placed if report.placements else {}
    return all(
        (known := placed.get(seen.placement_id)) is not None
        and known.node_id == node_id
        and not is_news(known, seen)
        for seen in report.placements
    )


@dataclass(frozen=True, slots=True)
class _Arrival:
    node_id: str
    report: Report
    taken: asyncio.Future[bool]


class Returns:
    """Takes complete reports that show what is recorded already, many in one transaction."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._waiting: list[_Arrival] = []
        self._work: asyncio.Task[None] | None = None

    async def take(self, node_id: str, report: Report) -> bool:
        """Take a complete report; False where it holds news, and then nothing has changed.

        Raises StorageError where the transaction that it shared failed, BusyError where so many wait that its agent
        would give up before its turn: it comes again after a pause that no other has.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise BusyError(f"{MOST_WAITING} agents that have come back wait to be heard.", retry_after=5.0)
        arrival = _Arrival(node_id, report, asyncio.get_running_loop().create_future())
        self._waiting.append(arrival)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._take_all(), name="returning agents")
        return await arrival.taken

    async def _take_all(self) -> None:
        while self._waiting:
            arrivals, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            work = asyncio.ensure_future(self._take_together(arrivals))
            await asyncio.wait({work})
            # Whatever it died of, those who wait must hear of it.
            error = work.exception()
            for arrival in arrivals:
                if arrival.taken.done():
                    continue
                if error is not None:
                    arrival.taken.set_exception(error)
                else:
                    arrival.taken.set_result(arrival in work.result())
            if len(arrivals) >= _FEW:
                # Every transaction has all views made anew, whatever the number of nodes in it.
                await asyncio.sleep(_GATHER_SECONDS)

    async def _take_together(self, arrivals: Sequence[_Arrival]) -> Collection[_Arrival]:
        """Take those without news, and return them."""
        # Two of one node, such as one that was sent again, are for the other way.
        several = {one.node_id: one for one in arrivals}
        async with self._pool.change() as change:
            quiet = await self._without_news(change, several)
            keys = {_scope(node_id): several[node_id].report.report_id for node_id in quiet}
            new = await change.writer.first_times(keys)
            quiet = {node_id: node for node_id, node in quiet.items() if _scope(node_id) in new}
            await change.writer.note_nodes(
                [await _back(change, node, several[node_id].report) for node_id, node in quiet.items()]
            )
        for node_id in quiet:
            # None had a command, and no other change can have come in between.
            self._pool.links.nothing_waits(node_id)
        return [several[node_id] for node_id in quiet]

    async def _without_news(self, change: "Change", arrivals: Mapping[str, _Arrival]) -> dict[str, Node]:
        """Return the nodes whose reports hold none."""
        writer = change.writer
        nodes = await writer.some_nodes(arrivals)
        devices = _by_node(await writer.devices_on(arrivals))
        live = _by_node(await writer.live_on(arrivals))
        waiting = await writer.with_commands(arrivals)
        quiet: dict[str, Node] = {}
        for node_id, arrival in arrivals.items():
            node, link, report = nodes.get(node_id), self._pool.links.get(node_id), arrival.report
            if node is None or link is None or node.state not in _BACK or node_id in waiting:
                continue
            if link.overtaken(report.boot_id, report.session, node) or link.disputes:
                continue
            if _as_recorded(report, devices[node_id], live[node_id]):
                quiet[node_id] = node
        return quiet


def _scope(node_id: str) -> str:
    return f"report:{node_id}"


def _by_node(records: Iterable[Of]) -> defaultdict[str, list[Of]]:
    found: defaultdict[str, list[Of]] = defaultdict(list)
    for record in records:
        found[record.node_id].append(record)
    return found


def _as_recorded(report: Report, devices: Sequence[Device], live: Sequence[Placement]) -> bool:
    """Tell whether a complete report shows the devices and live placements of its node as they are recorded."""
    known = {device.id: device for device in devices}
    present = {device.id for device in devices if device.present}
    shown = report.devices or []
    if present != {one.id for one in shown} or len(present) != len(shown):
        return False
    for one in shown:
        old = known[one.id]
        facts = {**one.model_dump(), "failed_rules": tuple(one.failed_rules)}
        if replace(old, **facts) != old:
            return False
    placed = {placement.id: placement for placement in live}
    if placed.keys() != {seen.placement_id for seen in report.placements}:
        return False
    return not any(is_news(placed[seen.placement_id], seen) for seen in report.placements)


async def _back(change: "Change", node: Node, report: Report) -> Node:
    """Return the node as it is once it is back, with the events of that."""
    if node.session != report.session:
        await change.emit("node.connected", node.id, node=node.name, session=report.session)
    if node.state is NodeState.UNREACHABLE:
        await change.emit("node.verifying", node.id, node=node.name, reason=None)
    if node.state is not NodeState.READY:
        await change.emit("node.ready", node.id, node=node.name, reason="no proof asked")
    return replace(
        node, state=NodeState.READY, session=report.session, boot_id=report.boot_id, seen_at=change.at
    )
