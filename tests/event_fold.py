"""The state of a pool as its events alone tell it: what a follower knows that has read every one of them.

Folding refuses a move that the state machines refuse and a move to where the thing is already, so tables that agree
with the fold prove that every change of state has exactly one event, in order.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gpupool.fleet.events import Event
from gpupool.fleet.nodes import NODE_MACHINE, NodeState
from gpupool.fleet.placements import PLACEMENT_MACHINE, PlacementState
from gpupool.fleet.ports.store import Reader


@dataclass
class Fold:
    """What the events up to ``seq`` tell."""

    seq: int = 0
    nodes: dict[str, NodeState] = field(default_factory=dict)
    placements: dict[str, PlacementState] = field(default_factory=dict)
    devices: dict[str, bool] = field(default_factory=dict)
    """Whether a device is there."""
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Version, wanted instances and whether deleted."""

    def take(self, events: Iterable[Event]) -> None:
        """Fold events in, in the order in which they come."""
        noun_takers: dict[str, Callable[[str, Event], None]] = {
            "node": self._node,
            "placement": self._placement,
            "device": self._device,
            "workload": self._workload,
        }
        for event in events:
            assert event.seq > self.seq, f"{event} comes after number {self.seq}"
            self.seq = event.seq
            noun, verb = event.kind.split(".")
            taker = noun_takers.get(noun)
            if taker is not None:
                taker(verb, event)

    async def check(self, reader: Reader) -> None:
        """Assert that the tables say what the events said."""
        assert self.seq == await reader.last_event_seq()
        assert self.nodes == {node.id: node.state for node in await reader.nodes(removed=True)}
        placements = await reader.placements(limit=1_000_000)
        assert self.placements == {placement.id: placement.state for placement in placements}
        assert self.devices == {device.id: device.present for device in await reader.devices()}
        assert self.workloads == {
            workload.id: {
                "version": workload.version,
                "wanted": workload.wanted,
                "deleted": workload.deleted,
            }
            for workload in await reader.workloads(deleted=True)
        }

    def _node(self, verb: str, event: Event) -> None:
        if verb == "joined":
            assert event.subject not in self.nodes, f"{event} for a known node"
            self.nodes[event.subject] = NodeState.JOINING
        elif verb not in {"connected", "changed", "draining", "undrained", "drained"}:
            old, new = self.nodes[event.subject], NodeState(verb)
            assert new is not old, f"{event} tells nothing new"
            NODE_MACHINE.check(old, new, event.subject)
            self.nodes[event.subject] = new

    def _placement(self, verb: str, event: Event) -> None:
        if verb == "planned":
            assert event.subject not in self.placements, f"{event} for a known placement"
            self.placements[event.subject] = PlacementState.PLANNED
        elif verb != "noted":
            old, new = self.placements[event.subject], PlacementState(verb)
            assert new is not old, f"{event} tells nothing new"
            PLACEMENT_MACHINE.check(old, new, event.subject)
            self.placements[event.subject] = new

    def _device(self, verb: str, event: Event) -> None:
        if verb == "found":
            assert event.subject not in self.devices, f"{event} for a known device"
        elif verb == "absent":
            assert self.devices[event.subject], f"{event} for a device that is absent already"
        self.devices[event.subject] = verb != "absent"

    def _workload(self, verb: str, event: Event) -> None:
        if verb == "created":
            assert event.subject not in self.workloads, f"{event} for a known workload"
            self.workloads[event.subject] = {"version": 1, "deleted": False}
        known = self.workloads[event.subject]
        assert not known["deleted"], f"{event} of a deleted workload"
        known.update({key: event.data[key] for key in ("version", "wanted") if key in event.data})
        known["deleted"] = verb == "deleted"
