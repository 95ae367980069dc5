"""An endpoint exists only while its placement serves and its node has shown itself in this run of control."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_samples import a_full_spec, a_node, a_placement, a_workload
from gpupool.fleet.endpoints import EndpointHealth, endpoint_of
from gpupool.fleet.nodes import NodeState
from gpupool.fleet.placements import PlacementState

WORKLOAD = a_workload(spec=a_full_spec())


@given(
    st.sampled_from(PlacementState),
    st.sampled_from(NodeState),
    st.sampled_from([None, "session"]),
    st.sampled_from([None, 30123]),
)
def test_an_endpoint_needs_a_serving_placement_a_port_and_a_session(
    placed: PlacementState, node_state: NodeState, session: str | None, port: int | None
) -> None:
    node = a_node(state=node_state, session=session)
    found = endpoint_of(a_placement(WORKLOAD.id, node.id, state=placed, port=port), node, WORKLOAD)
    serves = placed in {PlacementState.ACTIVE, PlacementState.DRAINING}
    assert (found is not None) == (serves and session is not None and port is not None)
    if found is not None:
        assert found.draining == (placed is PlacementState.DRAINING)
        assert (found.health is EndpointHealth.OK) == (node_state is NodeState.READY)


@pytest.mark.parametrize(
    ("host", "address"),
    [("10.0.0.7", "10.0.0.7:30123"), ("fd00::7", "[fd00::7]:30123"), ("gpu7", "gpu7:30123")],
)
def test_an_endpoint_carries_what_callers_need(host: str, address: str) -> None:
    node = a_node(address=host, state=NodeState.READY, session="session")
    placement = a_placement(
        WORKLOAD.id, node.id, id="pl-7", state=PlacementState.ACTIVE, port=30123, rate=12.5
    )
    found = endpoint_of(placement, node, WORKLOAD)
    assert found is not None
    assert (found.id, found.placement_id, found.node_id) == ("ep-7", "pl-7", node.id)
    assert (found.address, found.rate, found.concurrency) == (address, 12.5, 8)
    assert (found.models, found.protocol) == (("small", "größer"), "recompute")
