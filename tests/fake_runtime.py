"""A runtime that runs nothing: tests of the agent set its instances' states by hand."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpupool.core.errors import NotFoundError
from gpupool.fleet.ports.runtime import Instance, InstanceState, LaunchOrder


class FakeRuntime:
    """Serves the runtime port from a dictionary."""

    def __init__(self) -> None:
        self.orders: dict[str, LaunchOrder] = {}
        self.stops: list[tuple[str, float | None]] = []
        self.forgotten: list[str] = []
        self.known: dict[str, Instance] = {}
        self.let_go = False
        self._changed = asyncio.Event()

    def show(self, placement_id: str, state: InstanceState, **changes: Any) -> None:
        """Put an instance into a state."""
        known = self.known.get(placement_id) or Instance(placement_id=placement_id, state=state)
        self.known[placement_id] = replace(known, state=state, **changes)
        self._changed.set()

    async def adopt(self) -> Sequence[Instance]:
        return list(self.known.values())

    async def launch(self, order: LaunchOrder) -> Instance:
        if order.placement_id not in self.known:
            self.orders[order.placement_id] = order
            self.show(order.placement_id, InstanceState.RUNNING, port=30000)
        return self.known[order.placement_id]

    async def stop(self, placement_id: str, grace_seconds: float | None = None) -> None:
        self.stops.append((placement_id, grace_seconds))
        if placement_id in self.known:
            self.show(placement_id, InstanceState.EXITED, reason="stopped")

    async def instances(self) -> Sequence[Instance]:
        self._changed.clear()
        return list(self.known.values())

    async def changed(self) -> None:
        await self._changed.wait()

    async def forget(self, placement_id: str) -> None:
        known = self.known.get(placement_id)
        if known is not None and known.state is InstanceState.EXITED:
            del self.known[placement_id]
            self.forgotten.append(placement_id)

    async def log_tail(self, placement_id: str, lines: int) -> str:
        if placement_id not in self.known:
            raise NotFoundError(f"There is no output of {placement_id} on this node.")
        return f"{lines} lines of {placement_id}\n"

    async def close(self, *, stop_instances: bool) -> None:
        self.let_go = not stop_instances
