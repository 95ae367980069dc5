"""Views of a pool as control sends them, for what the command line makes of them."""

from datetime import UTC, datetime
from typing import Any

from gpupool.contracts.control import PlacementView, WorkloadView
from gpupool.contracts.spec import SpecFile
from gpupool.fleet.placements import PlacementState

AT = datetime(2026, 1, 1, tzinfo=UTC)
ID = "pl-01m8q9pysmy6sa6n8jjk2nf7kf"


def placement(state: PlacementState = PlacementState.FAILED, **changes: Any) -> PlacementView:
    base: dict[str, Any] = {
        "id": ID,
        "workload_id": "wl-1",
        "workload": "demo",
        "version": 1,
        "node_id": "node-1",
        "node": "a-node-with-a-name",
        "state": state,
        "reason": None,
        "address": "192.168.100.100:31295",
        "port": 31295,
        "restarts": 0,
        "claims": [],
        "created_at": AT,
        "changed_at": AT,
    }
    return PlacementView.model_validate({**base, **changes})


def workload(*placements: PlacementView, **changes: Any) -> WorkloadView:
    base: dict[str, Any] = {
        "id": "wl-1",
        "name": "demo",
        "kind": "chute",
        "version": 1,
        "spec": SpecFile(name="demo", command=["sleep", "60"]),
        "wanted": 1,
        "active": 0,
        "live": sum(p.state is not PlacementState.FAILED for p in placements),
        "why": None,
        "not_before": None,
        "created_at": AT,
        "placements": list(placements),
    }
    return WorkloadView.model_validate({**base, **changes})
