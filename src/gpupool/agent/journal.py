"""The agent's journal: what it must still know after a crash.

An order is written here before it is acknowledged, since control forgets it then. One small file, replaced in one
step; the numbers of the command sequence belong to one node id and start anew with another.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from gpupool.contracts.agent_link import StartOrder
from gpupool.core.files import read_json, write_private_json


@dataclass(slots=True)
class Wanted:
    """A placement that control has ordered and has not yet been told the end of."""

    order: StartOrder
    stop_grace: float | None = None
    """Set once it was ordered to stop: seconds between the polite and the forced end."""


@dataclass(slots=True)
class Journal:
    """The durable state of one agent. Change it through its methods only."""

    path: Path
    node_id: str | None = None
    last_seq: int = 0
    """The highest command that is safe here."""
    wanted: dict[str, Wanted] = field(default_factory=dict)
    """By placement id."""
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the journal kept at ``path``, empty where there is none or it cannot be read."""
        value: Any = read_json(path)
        try:
            wanted = {
                name: Wanted(StartOrder.model_validate(entry["order"]), entry["stop_grace"])
                for name, entry in value["wanted"].items()
            }
            return cls(path, value["node_id"], int(value["last_seq"]), wanted)
        except (TypeError, KeyError, ValueError, AttributeError, ValidationError):
            return cls(path)

    async def adopt_identity(self, node_id: str) -> bool:
        """Note the id that control gave this node; True when it differs from the one the orders came under."""
        if node_id == self.node_id:
            return False
        stranger = self.node_id is not None
        self.node_id, self.last_seq = node_id, 0
        await self._save()
        return stranger

    async def start(self, seq: int, order: StartOrder) -> None:
        """Keep an order; one for a placement already here changes nothing but the sequence."""
        self.wanted.setdefault(order.placement_id, Wanted(order))
        await self._passed(seq)

    async def stop(self, seq: int, placement_id: str, grace_seconds: float) -> None:
        """Keep the wish that a placement ends; an unknown one is no error."""
        known = self.wanted.get(placement_id)
        if known is not None:
            known.stop_grace = grace_seconds
        await self._passed(seq)

    async def passed(self, seq: int) -> None:
        """Note a command that leaves nothing to keep."""
        await self._passed(seq)

    async def drop(self, placement_ids: set[str]) -> None:
        """Forget placements whose end control knows."""
        dropped = [self.wanted.pop(name) for name in placement_ids if name in self.wanted]
        if dropped:
            await self._save()

    async def _passed(self, seq: int) -> None:
        self.last_seq = max(self.last_seq, seq)
        await self._save()

    async def _save(self) -> None:
        async with self._saving:
            value: dict[str, Any] = {
                "node_id": self.node_id,
                "last_seq": self.last_seq,
                "wanted": {
                    name: {"order": entry.order.model_dump(mode="json"), "stop_grace": entry.stop_grace}
                    for name, entry in self.wanted.items()
                },
            }
            await asyncio.to_thread(write_private_json, self.path, value)
