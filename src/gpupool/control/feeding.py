"""The endpoints feed's view, derived from a snapshot.

Its revision is the number of the newest event, since nothing that the view shows changes without one. After a start
of control the view is not complete until the nodes that had placements have shown their inventory, or have had their
time for it: followers keep their last view rather than lose endpoints that still serve.
"""

from gpupool.contracts.feed import EndpointsView, FeedEndpoint, FeedWorkload
from gpupool.control.snapshot import Snapshot
from gpupool.fleet.endpoints import Endpoint, endpoint_of
from gpupool.fleet.workloads import Protocol, Workload


def endpoints_view(snapshot: Snapshot, protocol: Protocol | None, *, complete: bool) -> EndpointsView:
    """Return everything callable of one protocol (or of all)."""
    endpoints = [
        found
        for placement in snapshot.live
        if (
            found := endpoint_of(
                placement, snapshot.nodes[placement.node_id], snapshot.workloads[placement.workload_id]
            )
        )
        and protocol in {None, found.protocol}
    ]
    active = {endpoint.workload_id for endpoint in endpoints if not endpoint.draining}
    live = {placement.workload_id for placement in snapshot.live}
    return EndpointsView(
        revision=snapshot.seq,
        complete=complete,
        workloads=[
            _workload(workload, active=workload.id in active, live=workload.id in live)
            for workload in snapshot.wanted_workloads()
            if protocol in {None, workload.spec.protocol}
        ],
        endpoints=[_endpoint(endpoint) for endpoint in endpoints],
    )


def _workload(workload: Workload, *, active: bool, live: bool) -> FeedWorkload:
    return FeedWorkload(
        id=workload.id,
        name=workload.name,
        models=list(workload.spec.models),
        wanted=workload.wanted,
        state="active" if active else "off" if workload.wanted == 0 else "starting" if live else "waiting",
        why=workload.why,
        created_at=workload.created_at.timestamp(),
    )


def _endpoint(endpoint: Endpoint) -> FeedEndpoint:
    return FeedEndpoint(
        id=endpoint.id,
        placement=endpoint.placement_id,
        node=endpoint.node_id,
        workload=endpoint.workload_id,
        models=list(endpoint.models),
        protocol=endpoint.protocol,
        address=endpoint.address,
        tls=endpoint.tls,
        state="draining" if endpoint.draining else "active",
        health=endpoint.health,
        rate=endpoint.rate,
        weight=endpoint.weight,
        concurrency=endpoint.concurrency,
    )
