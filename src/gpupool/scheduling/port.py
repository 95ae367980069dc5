"""The scheduling port: one question, one answer that explains itself.

A strategy sees the whole fleet at one moment and names a node and its devices, or says for each node and device
which rule refused. An operator can replace the strategy by any class with this one method.
"""

from dataclasses import dataclass
from typing import Protocol

from gpupool.fleet.claims import Claim, ClaimMode
from gpupool.fleet.devices import Device
from gpupool.fleet.nodes import Node
from gpupool.fleet.workloads import WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node with everything that decides whether a workload fits on it."""

    node: Node
    devices: tuple[Device, ...] = ()
    """All devices ever seen on the node, absent ones included."""
    claims: tuple[Claim, ...] = ()
    """What is held of those devices."""
    ports: frozenset[int] = frozenset()
    """Ports of the node's live placements."""

    def held(self, device_id: str) -> tuple[Claim, ...]:
        """Return the claims on one device."""
        return tuple(claim for claim in self.claims if claim.device_id == device_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """The fleet at one moment."""

    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """One rule that one node or device did not pass."""

    subject: str
    """Id of the node or device; ``fleet`` where the whole fleet is meant."""
    rule: str
    """Stable name of the rule, such as ``min_vram``."""
    detail: str
    """What was asked and what was found, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where a workload goes, or why it goes nowhere."""

    node_id: str | None = None
    device_ids: tuple[str, ...] = ()
    mode: ClaimMode = ClaimMode.EXCLUSIVE
    mib: int = 0
    """Memory claimed of each device in shared mode; an exclusive claim takes the whole device."""
    hourly_usd: float = 0.0
    refusals: tuple[Refusal, ...] = ()

    @property
    def placed(self) -> bool:
        """Whether a node was found."""
        return self.node_id is not None


class Strategy(Protocol):
    """Decides where a workload goes."""

    def place(self, spec: WorkloadSpec, fleet: FleetView) -> Decision:
        """Return a node and devices that pass every rule, or the refusals of all of them."""
        ...
