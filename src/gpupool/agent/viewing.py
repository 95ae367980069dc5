"""What the node tells about a placement: the runtime's view of an instance in the fleet's words."""

from typing import Final

from gpupool.contracts.agent_link import PlacementReport
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.ports.runtime import Instance, InstanceState

STOPPED: Final = "stopped"
FINAL: Final = frozenset({PlacementState.ENDED, PlacementState.FAILED})
_LIVE: Final = {
    InstanceState.STARTING: PlacementState.STARTING,
    InstanceState.RUNNING: PlacementState.VERIFYING,
    InstanceState.HEALTHY: PlacementState.ACTIVE,
    InstanceState.STOPPING: PlacementState.DRAINING,
}
_MOST_REASON: Final = 2000
_MEMORY_STEP_MIB: Final = 64


def report_of(instance: Instance, *, stopping: bool) -> PlacementReport:
    """Return the report of an instance; one that exited has ended when that was ordered, and failed otherwise."""
    if instance.state is InstanceState.EXITED:
        state = PlacementState.ENDED if stopping or instance.reason == STOPPED else PlacementState.FAILED
    else:
        state = PlacementState.DRAINING if stopping else _LIVE[instance.state]
    return PlacementReport(
        placement_id=instance.placement_id,
        state=state,
        reason=instance.reason[:_MOST_REASON] if instance.reason else None,
        port=instance.port,
        restarts=instance.restarts,
        memory_mib=instance.memory_mib,
    )


def is_news(report: PlacementReport, told: PlacementReport | None) -> bool:
    """Tell whether a report says more than the last one did; memory counts in steps of 64 MiB."""
    if told is None:
        return True
    steps = {(item.memory_mib or 0) // _MEMORY_STEP_MIB for item in (report, told)}
    return len(steps) > 1 or report.model_copy(update={"memory_mib": told.memory_mib}) != told
