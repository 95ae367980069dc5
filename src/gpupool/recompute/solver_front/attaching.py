"""Keeps a farmer connected to a solver: stock Chia connects only when it is told to, and forgets at every restart.

Connecting drops every solver that the farmer has, so it is done only where there is none, or at the first look, when
the operator has just asked for it. If somebody connects another solver later, that is left alone, and told.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from gpupool.core.errors import UnavailableError
from gpupool.recompute.addresses import Address
from gpupool.recompute.solver_front.farmer_rpc import FarmerRefusedError, FarmerRpc, SolverConnection

LOOK_SECONDS: Final = 10.0
log = structlog.get_logger(__name__)
State = Literal["attached", "elsewhere", "refused", "unreachable"]


@dataclass(frozen=True, slots=True)
class Standing:
    """How a farmer stands towards the solver."""

    state: State
    told: str
    """In words, for people."""
    remedy: str | None = None
    node_id: str | None = None
    """Of the solver that it is connected to."""
    connected_now: bool = False
    """Whether this look has made the connection."""


class Attachment:
    """One farmer and the solver that it should have."""

    def __init__(self, rpc: FarmerRpc, solver: Address) -> None:
        self._rpc, self._solver = rpc, solver
        self._ours: str | None = None

    async def look(self) -> Standing:
        """Look, connect where need be, and return how it stands; raises nothing for what the farmer does."""
        try:
            return await self._look()
        except FarmerRefusedError as error:
            return Standing("refused", error.message, error.remedy)
        except UnavailableError as error:
            return Standing("unreachable", error.message, error.remedy)

    async def _look(self) -> Standing:
        found = await self._rpc.solvers()
        known = self._known(found)
        if known is not None:
            return self._attached(known)
        if found and self._ours is not None:
            other = found[0]
            return Standing(
                "elsewhere",
                f"The farmer {self._rpc.name} was connected to another solver ({other.host}) by somebody.",
                "That one is left alone; start this command again to take the farmer back.",
                other.node_id,
            )
        await self._rpc.connect(self._solver)
        newest = max(await self._rpc.solvers(), key=lambda solver: solver.since, default=None)
        if newest is None:
            raise FarmerRefusedError(
                f"The farmer {self._rpc.name} had a connection, and the solver ended it: it may have been refused."
            )
        return self._attached(newest, connected_now=True)

    def _known(self, found: list[SolverConnection]) -> SolverConnection | None:
        for solver in found:
            same_address = (solver.host, solver.port) == self._solver
            if solver.node_id == self._ours or (self._ours is None and same_address):
                return solver
        return None

    def _attached(self, solver: SolverConnection, *, connected_now: bool = False) -> Standing:
        self._ours = solver.node_id
        return Standing(
            "attached",
            f"The farmer {self._rpc.name} is connected to the solver {solver.host}, node id {solver.node_id}.",
            node_id=solver.node_id,
            connected_now=connected_now,
        )


async def keep_attached(
    attachment: Attachment,
    tell: Callable[[Standing], None],
    stop: asyncio.Event,
    seconds: float = LOOK_SECONDS,
) -> None:
    """Look every so many seconds until told to stop; ``tell`` hears of each change, and of each new connection."""
    before: tuple[State, str | None] | None = None
    while not stop.is_set():
        standing = await attachment.look()
        now = standing.state, standing.node_id
        if now != before or standing.connected_now:
            tell(standing)
        before = now
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            continue
