"""Placements: a workload version on devices of one node.

``planned -> starting -> verifying -> active -> draining -> ended``, or ``failed`` with a reason. An active placement
goes back to verifying while its process restarts or its health is lost. Claims are given back in the transaction
that makes a placement final, and only when the process is really gone.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpupool.fleet.machines import StateMachine


class PlacementState(StrEnum):
    """Where a placement stands."""

    PLANNED = "planned"
    """Claims are taken and the node has its order."""
    STARTING = "starting"
    """The node has launched the process."""
    VERIFYING = "verifying"
    """The process runs and is not healthy yet, or not any more."""
    ACTIVE = "active"
    DRAINING = "draining"
    """It takes nothing new and is being stopped."""
    ENDED = "ended"
    FAILED = "failed"


_S = PlacementState
PLACEMENT_MACHINE: Final = StateMachine(
    "placement",
    {
        _S.PLANNED: frozenset({_S.STARTING, _S.DRAINING, _S.FAILED}),
        _S.STARTING: frozenset({_S.VERIFYING, _S.DRAINING, _S.FAILED}),
        _S.VERIFYING: frozenset({_S.ACTIVE, _S.DRAINING, _S.FAILED}),
        _S.ACTIVE: frozenset({_S.VERIFYING, _S.DRAINING, _S.FAILED}),
        _S.DRAINING: frozenset({_S.ENDED, _S.FAILED}),
        _S.ENDED: frozenset(),
        _S.FAILED: frozenset(),
    },
)
LIVE_STATES: Final = frozenset(state for state in PlacementState if not PLACEMENT_MACHINE.is_final(state))

_ORDER: Final = (_S.PLANNED, _S.STARTING, _S.VERIFYING, _S.ACTIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A workload version on devices of one node."""

    id: str
    workload_id: str
    workload_version: int
    node_id: str
    state: PlacementState = PlacementState.PLANNED
    reason: str | None = None
    """Why it failed or ended; starts with a stable word such as ``lost``, ``exit``, ``unhealthy``, ``memory``."""
    port: int | None = None
    restarts: int = 0
    rate: float | None = None
    """Measured work per second, in the unit of the protocol; None until measured."""
    created_at: datetime
    changed_at: datetime

    def moved(self, to: PlacementState, at: datetime, reason: str | None = None) -> "Placement":
        """Return the placement in state ``to``; raise ImpossibleMoveError where the machine refuses."""
        PLACEMENT_MACHINE.check(self.state, to, self.id)
        if to is self.state:
            return self
        kept = None if to is PlacementState.ACTIVE else reason or self.reason
        return replace(self, state=to, changed_at=at, reason=kept)

    @property
    def live(self) -> bool:
        """Whether it still holds devices."""
        return self.state in LIVE_STATES


def path_to(old: PlacementState, new: PlacementState) -> tuple[PlacementState, ...]:
    """Return the moves that lead from ``old`` to ``new``, ``new`` last; empty when already there or out of reach.

    Reports may skip steps that happened between two of them (planned, then active), and a report that lags
    behind leads nowhere.
    """
    if old == new:
        return ()
    if PLACEMENT_MACHINE.allows(old, new):
        return (new,)
    if old in _ORDER and new in _ORDER and _ORDER.index(new) > _ORDER.index(old):
        return _ORDER[_ORDER.index(old) + 1 : _ORDER.index(new) + 1]
    if new is PlacementState.ENDED and old in LIVE_STATES:
        return (PlacementState.DRAINING, PlacementState.ENDED)
    return ()
