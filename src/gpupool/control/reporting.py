"""Reports of the agents: what a node says, compared with what is recorded.

A report of an unknown session is not news; the reply asks for a complete one. Neither is a report that a newer
session has overtaken on its way. A complete report is the only thing that can show a placement to be lost. A
placement that the node runs and nobody knows is ordered to stop.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import structlog

from gpupool.contracts.agent_link import DeviceReport, PlacementReport, Report, ReportReply
from gpupool.control.joining import removal
from gpupool.control.links import Link
from gpupool.control.pool import Change, Pool
from gpupool.control.recording import (
    clear_failures,
    count_failure,
    move_node,
    move_placement,
    order_stop,
)
from gpupool.control.returning import only_measured, rate_is_news
from gpupool.fleet.devices import Device
from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.placements import LIVE_STATES, Placement, PlacementState
from gpupool.fleet.ports.store import QueuedCommand

_LOG = structlog.get_logger(__name__)


async def take_report(pool: Pool, node_id: str, report: Report) -> ReportReply:
    """Record what a node reports and return the answer; a report taken before changes nothing."""
    link = pool.links.heard(node_id)
    if link.recount and not report.complete:
        return ReportReply(session_known=False)
    if await only_measured(pool, node_id, link, report):
        return ReportReply()
    if report.complete and not report.leaving and await pool.returns.take(node_id, report):
        _note(pool, node_id, link, report)
        return ReportReply()
    async with pool.change() as change:
        node = await change.writer.node(node_id)
        if node is not None and node.removed:
            pool.forget_node(node_id)
            raise removal(node)
        if node is None or not (report.complete or node.session == report.session):
            return ReportReply(session_known=False)
        if link.overtaken(report.boot_id, report.session, node):
            return ReportReply(session_known=False)
        if not await change.writer.first_time(f"report:{node_id}", report.report_id):
            return ReportReply(session_known=node.session == report.session)
        await _Intake(pool, change, report).take(node)
    _note(pool, node_id, link, report)
    return ReportReply()


def _note(pool: Pool, node_id: str, link: Link, report: Report) -> None:
    """Note in memory that a report was taken."""
    link.silent = False
    link.leaving = link.leaving and not report.complete
    link.recount = link.recount and not report.complete
    link.session = None if report.leaving else report.session
    link.newest = (report.boot_id, report.session)
    if report.complete or report.leaving:
        pool.awaited.discard(node_id)
        pool.links.settle_disputes_with(node_id)


class _Intake:
    """One report on its way into the records."""

    def __init__(self, pool: Pool, change: Change, report: Report) -> None:
        self._pool, self._change, self._report = pool, change, report

    async def take(self, node: Node) -> None:
        report, change = self._report, self._change
        pending = await change.writer.commands(node.id, limit=10_000)
        node = await self._note_session(node)
        if report.devices is not None:
            await self._take_devices(node, report.devices)
        for seen in report.placements:
            await self._take_placement(node, seen)
        if report.complete:
            await self._find_lost(node, pending)
        if report.acknowledged is not None:
            await change.writer.acknowledge(node.id, report.acknowledged)
        if report.leaving:
            await self._leave(node, pending)

    async def _note_session(self, node: Node) -> Node:
        """Record the session and that the node is there; no proof is asked yet, so verifying passes at once."""
        report, change = self._report, self._change
        seen = replace(node, session=report.session, boot_id=report.boot_id, seen_at=change.at)
        if seen.session != node.session:
            await change.emit("node.connected", node.id, node=node.name, session=report.session)
        await change.writer.put_node(seen)
        if report.complete and seen.state in {NodeState.JOINING, NodeState.UNREACHABLE}:
            seen = await move_node(change, seen, NodeState.VERIFYING)
        return await move_node(
            change, seen, NodeState.READY, "no proof asked" if report.complete else "heard again"
        )

    async def _take_devices(self, node: Node, reports: Iterable[DeviceReport]) -> None:
        known = {device.id: device for device in await self._change.writer.devices(node.id)}
        shown = set()
        link = self._pool.links.heard(node.id)
        if self._report.complete:
            link.disputes.clear()
        for report in reports:
            old = known.get(report.id) or await self._change.writer.device(report.id)
            if old is not None and old.node_id != node.id and await self._elsewhere(old):
                self._pool.links.dispute(node.id, old.node_id)
                await self._change.emit(
                    "device.disputed", report.id, node=node.name, held_by=old.node_id, name=report.name
                )
                continue
            shown.add(report.id)
            await self._take_device(node, report, old)
        if self._report.complete:
            for old in known.values():
                if old.present and old.id not in shown:
                    await self._change.writer.put_device(replace(old, present=False))
                    await self._change.emit("device.absent", old.id, node=node.name, name=old.name)

    async def _elsewhere(self, device: Device) -> bool:
        """Tell whether another node that is there shows this device."""
        owner = await self._change.writer.node(device.node_id)
        return device.present and owner is not None and owner.session is not None

    async def _take_device(self, node: Node, report: DeviceReport, old: Device | None) -> None:
        facts = report.model_dump()
        device = Device(**{**facts, "failed_rules": tuple(report.failed_rules)}, node_id=node.id)
        if old is not None:
            device = replace(device, proof=old.proof)
        if device == old:
            return
        await self._change.writer.put_device(device)
        kind = "device.found" if old is None else "device.changed"
        await self._change.emit(
            kind, device.id, node=node.name, name=device.name, memory_mib=device.memory_mib
        )

    async def _take_placement(self, node: Node, seen: PlacementReport) -> None:
        placement = await self._change.writer.placement(seen.placement_id)
        runs = seen.state in LIVE_STATES
        if placement is None or placement.node_id != node.id or not placement.live:
            if runs:
                await order_stop(self._change, node.id, seen.placement_id)
            return
        asked_to_end = placement.state is PlacementState.DRAINING
        placement = await self._note_facts(placement, seen)
        before = placement.state
        moved = await move_placement(self._change, placement, seen.state, seen.reason)
        if moved.state is before:
            goes_on = runs and (self._report.complete or seen.state is not PlacementState.DRAINING)
            if asked_to_end and goes_on:
                await order_stop(self._change, node.id, placement.id)
            return
        if moved.state is PlacementState.DRAINING and not asked_to_end:
            await self._note_leaving(node)
        if moved.state is PlacementState.ACTIVE:
            await clear_failures(self._change, placement.workload_id)
        elif not moved.live and not asked_to_end and not self._report.leaving:
            await count_failure(self._change, placement.workload_id, seen.reason, self._pool.random)

    async def _note_leaving(self, node: Node) -> None:
        """Note that the agent is stopping, for other controls too."""
        link = self._pool.links.heard(node.id)
        if self._pool.sharing is not None and not link.leaving:
            await self._change.emit("node.leaving", node.id, node=node.name)
        link.leaving = True

    async def _note_facts(self, placement: Placement, seen: PlacementReport) -> Placement:
        """Record port, restarts and rate; a rate that moved is an event, since followers weigh by it."""
        noted = replace(
            placement,
            port=seen.port or placement.port,
            restarts=max(seen.restarts, placement.restarts),
            reason=(seen.reason if seen.restarts > placement.restarts else None) or placement.reason,
            rate=placement.rate if seen.rate is None else seen.rate,
        )
        if noted == placement:
            return placement
        same = (noted.port, noted.restarts) == (placement.port, placement.restarts)
        if same and not rate_is_news(placement.rate, noted.rate):
            return placement
        await self._change.writer.put_placement(noted)
        await self._change.emit(
            "placement.noted", placement.id, port=noted.port, restarts=noted.restarts, rate=noted.rate
        )
        return noted

    async def _find_lost(self, node: Node, pending: Sequence[QueuedCommand]) -> None:
        """End what a complete report lacks, except what the node has not been told to start yet."""
        shown = {seen.placement_id for seen in self._report.placements}
        ordered = {command.payload.get("placement_id") for command in pending if command.kind == "start"}
        for placement in await self._change.writer.placements(node_id=node.id, live=True, limit=1_000_000):
            if placement.id in shown or placement.id in ordered:
                continue
            if placement.state is PlacementState.DRAINING:
                await move_placement(self._change, placement, PlacementState.ENDED, "gone")
            else:
                await move_placement(self._change, placement, PlacementState.FAILED, "lost")

    async def _leave(self, node: Node, pending: Sequence[QueuedCommand]) -> None:
        """An orderly stop: everything has ended, and orders not taken are void."""
        for placement in await self._change.writer.placements(node_id=node.id, live=True, limit=1_000_000):
            await move_placement(self._change, placement, PlacementState.ENDED, "stopped with its node")
        if pending:
            await self._change.writer.acknowledge(node.id, pending[-1].seq)
        node = replace(node, session=None)
        await self._change.writer.put_node(node)
        await move_node(self._change, node, NodeState.UNREACHABLE, "left")
