"""Endpoints: where live placements can be called.

Derived from placements, nodes and workloads; nothing is stored, so nothing can go stale. An endpoint exists while
its placement is active or draining *and* its node has shown a full inventory in this run of control.
"""

from dataclasses import dataclass
from enum import StrEnum

from gpupool.fleet.nodes import Node, NodeState
from gpupool.fleet.placements import Placement, PlacementState
from gpupool.fleet.workloads import Protocol, Workload


class EndpointHealth(StrEnum):
    """What control knows of the endpoint right now."""

    OK = "ok"
    UNKNOWN = "unknown"
    """The node's agent is silent; the process itself may well serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where one live placement can be called."""

    id: str
    placement_id: str
    node_id: str
    workload_id: str
    models: tuple[str, ...]
    protocol: Protocol
    address: str
    """``host:port``; IPv6 hosts in brackets."""
    tls: bool = False
    draining: bool
    health: EndpointHealth
    rate: float | None
    weight: float
    concurrency: int


def endpoint_of(placement: Placement, node: Node, workload: Workload) -> Endpoint | None:
    """Return the endpoint of a placement, or None while there is none to call."""
    callable_now = placement.state in {PlacementState.ACTIVE, PlacementState.DRAINING}
    if not callable_now or placement.port is None or node.session is None:
        return None
    host = f"[{node.address}]" if ":" in node.address else node.address
    return Endpoint(
        id=placement.id.replace("pl-", "ep-", 1),
        placement_id=placement.id,
        node_id=node.id,
        workload_id=workload.id,
        models=workload.spec.models,
        protocol=workload.spec.protocol,
        address=f"{host}:{placement.port}",
        tls=workload.spec.tls,
        draining=placement.state is PlacementState.DRAINING,
        health=EndpointHealth.OK if node.state is NodeState.READY else EndpointHealth.UNKNOWN,
        rate=placement.rate,
        weight=1.0,
        concurrency=workload.spec.concurrency,
    )
